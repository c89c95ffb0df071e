//! Strings that come from processes, made safe to show.

/// Printable ASCII stays; everything else becomes `\xNN`, and a backslash is doubled. So a process cannot move the
/// cursor, change colours or imitate other lines in somebody's terminal by its name.
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(printable(b"redis-server *:6379"), "redis-server *:6379");
        assert_eq!(
            printable(b"\x1b[2Ja\nb\\c\x9b\xe2\x80\xae"),
            "\\x1b[2Ja\\x0ab\\\\c\\x9b\\xe2\\x80\\xae"
        );
    }
}
