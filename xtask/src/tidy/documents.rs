//! Rules for Markdown: one title, links that lead somewhere.

use std::path::{Component, Path, PathBuf};

use super::{File, Finding};

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let documents = files.iter().filter(|file| file.path.ends_with(".md"));
    documents
        .flat_map(|file| [titles(file), links(file, files)].concat())
        .collect()
}

/// The lines that are text, with their numbers: not those of code blocks.
pub(super) fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            lines.push((number, line));
        }
    }
    lines
}

fn titles(file: &File) -> Vec<Finding> {
    let lines = prose(&file.text);
    let titles: Vec<usize> = lines
        .iter()
        .filter(|(_, line)| line.starts_with("# "))
        .map(|(number, _)| *number)
        .collect();
    match titles.as_slice() {
        [1] => Vec::new(),
        [] => vec![Finding::new(&file.path, 1, "no `# Title`")],
        [only] => vec![Finding::new(
            &file.path,
            *only,
            "the title is not the first line",
        )],
        [_, second, ..] => vec![Finding::new(&file.path, *second, "a second `# Title`")],
    }
}

fn links(file: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in prose(&file.text) {
        for target in targets(line) {
            if !leads_somewhere(file, target, files) {
                let what = format!("the link leads nowhere: {target}");
                findings.push(Finding::new(&file.path, number, what));
            }
        }
    }
    findings
}

/// What stands in the parentheses of `[text](target)`.
fn targets(line: &str) -> Vec<&str> {
    let without_code = line.split('`').step_by(2);
    let found = without_code.flat_map(|part| {
        part.match_indices("](")
            .filter_map(|(at, _)| part[at + 2..].split([')', ' ']).next())
    });
    found.collect()
}

fn leads_somewhere(from: &File, target: &str, files: &[File]) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    if path.is_empty() {
        return has_heading(&from.text, anchor);
    }
    let place = Path::new(&from.path).parent().unwrap_or(Path::new(""));
    let path = normal(&place.join(path));
    match files.iter().find(|file| Path::new(&file.path) == path) {
        Some(file) => anchor.is_empty() || has_heading(&file.text, anchor),
        None => path.is_dir() || (path.is_file() && anchor.is_empty()),
    }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

fn has_heading(text: &str, anchor: &str) -> bool {
    let headings = prose(text)
        .into_iter()
        .map(|(_, line)| line)
        .filter(|line| line.starts_with('#'));
    headings
        .map(|line| slug(line.trim_start_matches('#').trim()))
        .any(|slug| slug == anchor)
}

/// The anchor that renderers give a heading.
fn slug(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_document_has_one_title_and_it_comes_first() {
        assert!(titles(&file("a.md", "# A\n\n```\n# not a title\n```\n## B\n")).is_empty());
        for text in ["A\n", "# A\n# B\n", "A\n# B\n"] {
            assert_eq!(titles(&file("a.md", text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let files = [
            file("docs/a.md", "# A\n"),
            file("docs/b.md", "# B\n\n## The ring, and why\n"),
        ];
        let leads = |target| leads_somewhere(&files[0], target, &files);
        assert!(leads("b.md") && leads("../docs/b.md#the-ring-and-why") && leads("#a"));
        assert!(leads("https://example.org/x"));
        assert!(!leads("c.md") && !leads("b.md#nothing") && !leads("#b"));
        assert_eq!(
            targets("see [a](a.md), `[no](x)` and [b](b.md \"t\")"),
            ["a.md", "b.md"]
        );
    }
}
