//! `millrace completions` and the manual pages: both made of the command line's own definitions.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command, ValueHint};
use clap_complete::Shell;

/// Print the completions of a shell: what it offers when Tab is pressed.
///
/// `make install` and the Debian package install those of bash, zsh and fish.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  millrace completions bash > ~/.local/share/bash-completion/completions/millrace
  millrace completions fish > ~/.config/fish/completions/millrace.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

/// Write the manual pages, one for each subcommand.
#[derive(Debug, Args)]
pub(crate) struct ManualArguments {
    /// Where to.
    #[arg(value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

/// Prints completions.
pub(crate) fn complete(
    arguments: &CompletionsArguments,
    mut command: Command,
) -> anyhow::Result<u8> {
    // Not straight to standard output: a reader that has gone is an error to be told, and no panic.
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "millrace", &mut text);
    io::stdout().lock().write_all(&text)?;
    Ok(0)
}

/// Writes manual pages.
pub(crate) fn write(arguments: &ManualArguments, command: Command) -> anyhow::Result<u8> {
    // `millrace help ps` is `millrace ps --help`, and needs no page.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(&arguments.directory)
        .and_then(|()| write_pages(&command, &arguments.directory))
        .with_context(|| format!("cannot write to {}", arguments.directory.display()))?;
    Ok(0)
}

/// A page for the command and for each one below it.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
    {
        write_pages(below, directory)?;
    }
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name());
    std::fs::write(directory.join(format!("{name}.1")), page(command)?)
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let generated = clap_mangen::Man::new(command.clone());
    generated.render_title(&mut page)?;
    generated.render_name_section(&mut page)?;
    generated.render_synopsis_section(&mut page)?;
    generated.render_description_section(&mut page)?;
    generated.render_options_section(&mut page)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        generated.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command
        .get_after_long_help()
        .or_else(|| command.get_after_help())
    {
        page.extend_from_slice(closing(&text.to_string()).as_bytes());
    }
    Ok(page)
}

/// What stands behind the options in the help, in roff(7). Lines that are indented there are examples or tables, and stay as they are.
fn closing(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let examples = lines.next_if_eq(&"Examples:").is_some();
    let mut roff = format!(".SH {}\n", if examples { "EXAMPLES" } else { "NOTES" });
    let mut is_verbatim = false;
    for line in lines {
        let verbatim = line.starts_with("  ") || line.is_empty() && is_verbatim;
        match (is_verbatim, verbatim) {
            (false, true) => roff.push_str(".nf\n"),
            (true, false) => roff.push_str(".fi\n.PP\n"),
            (false, false) if line.is_empty() => roff.push_str(".PP\n"),
            _ => {}
        }
        is_verbatim = verbatim;
        if !line.is_empty() {
            // A period or an apostrophe at the beginning would be a request.
            roff.push_str("\\&");
            roff.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
            roff.push('\n');
        }
    }
    if is_verbatim {
        roff.push_str(".fi\n");
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stay_as_they_are_and_requests_are_none() {
        let text = "Examples:\n  a -b   for c\n\n.Exit\nstatus: \\0";
        let roff = ".SH EXAMPLES\n.nf\n\\&  a \\-b   for c\n.fi\n.PP\n\\&.Exit\n\\&status: \\e0\n";
        assert_eq!(closing(text), roff);
        assert!(closing("Exit status: 0").starts_with(".SH NOTES\n\\&Exit"));
    }
}
