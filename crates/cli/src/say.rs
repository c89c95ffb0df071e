//! Words on standard error, and on standard output where they are no result.

/// Says a line on standard error. Where it cannot be written, as on a disk that is full, it is lost: `eprintln` would end the program by a
/// panic, and with another exit status than the one that is due.
macro_rules! complain {
    ($($words:tt)*) => {
        crate::say::line(&mut std::io::stderr(), format_args!($($words)*))
    };
}

/// Says a line on standard output of what was done. Where it cannot be written, what is left is done all the same.
macro_rules! tell {
    () => {
        tell!("")
    };
    ($($words:tt)*) => {
        crate::say::line(&mut std::io::stdout(), format_args!($($words)*))
    };
}

pub(crate) fn line(stream: &mut impl std::io::Write, words: std::fmt::Arguments<'_>) {
    let _ = writeln!(stream, "{}", plain(&words.to_string()));
}

/// Text without what a terminal would obey: names of files, variables and answers may hold anything.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => plain.push(letter),
            letter if letter.is_control() => plain.extend(letter.escape_default()),
            letter => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_but_lines() {
        let mut said = Vec::new();
        line(
            &mut said,
            format_args!("{}:\n\tgr\u{f6}\u{df}er", "\x1b[2J\u{9b}1m\r\x7f"),
        );
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said, "\\u{1b}[2J\\u{9b}1m\\r\\u{7f}:\n\tgr\u{f6}\u{df}er\n");
    }
}
