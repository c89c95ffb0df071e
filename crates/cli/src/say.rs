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
    let _ = writeln!(stream, "{words}");
}
