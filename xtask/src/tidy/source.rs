//! As much of Rust's grammar as the rules need: what is code, and where functions begin and end.

/// A function and its size.
#[derive(Debug, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    /// From the line with `fn` to that of the closing brace.
    pub(super) lines: usize,
}

/// The text with comments and the contents of literals replaced by blanks; lines stay where they are.
pub(super) fn code_only(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let length = literal_length(rest, code.chars().next_back());
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
            code.extend(rest[..length].chars().map(blank));
            rest = &rest[length..];
        }
    }
    code
}

/// Bytes of the comment or literal that `rest` begins with; 0 when it begins with code.
fn literal_length(rest: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(is_word);
    let after_prefix = |prefix: &str| rest.strip_prefix(prefix).filter(|_| !in_word);
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    for prefix in ["r", "br", "cr"] {
        if let Some(length) = after_prefix(prefix).and_then(raw_string_length) {
            return prefix.len() + length;
        }
    }
    if rest.starts_with('"') {
        return quoted_length(rest, '"');
    }
    if rest.starts_with('\'') && is_character(rest) {
        quoted_length(rest, '\'')
    } else {
        0
    }
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Of `#"…"#` with any number of `#`, none included; `None` when it is something else.
fn raw_string_length(rest: &str) -> Option<usize> {
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let body = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(
        body.find(&end)
            .map_or(rest.len(), |at| hashes + 1 + at + end.len()),
    )
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Whether an apostrophe begins a character rather than a lifetime.
fn is_character(rest: &str) -> bool {
    let mut characters = rest.chars().skip(1);
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` stands in a line of code as a word of its own.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    word_positions(line, word).next().is_some()
}

fn word_positions<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = code[..at].chars().next_back();
            let after = code[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// All functions that have a body.
pub(super) fn functions(text: &str) -> Vec<Function> {
    let code = code_only(text);
    let functions = word_positions(&code, "fn").filter_map(|at| {
        let after = code[at + 2..].trim_start();
        let name: String = after.chars().take_while(|&c| is_word(c)).collect();
        let length = body_end(&code[at..]).filter(|_| !name.is_empty())?;
        Some(Function {
            name,
            lines: code[at..at + length].matches('\n').count() + 1,
        })
    });
    functions.collect()
}

/// Bytes from a function's `fn` to behind its body; `None` when there is only a declaration.
fn body_end(code: &str) -> Option<usize> {
    let (mut parentheses, mut braces) = (0_i32, 0_i32);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            ';' if braces == 0 && parentheses == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces <= 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("un\"safe") g"#, "f(          ) g"),
            (r##"f(r#"a"b"#) g"##, "f(        ) g"),
            ("'a' 'static '\\'' x", "    'static      x"),
            ("bar\"x\"", "bar   "),
        ];
        for (text, code) in cases {
            assert_eq!(code_only(text), code, "{text}");
        }
    }

    #[test]
    fn functions_are_measured_with_their_braces() {
        let text = "trait T { fn declared(&self) -> [u8; 2]; }\n\
                    fn one() {}\n\
                    fn three(f: fn(u8)) {\n    let brace = '}';\n}\n";
        let function = |name: &str, lines| Function {
            name: name.to_owned(),
            lines,
        };
        assert_eq!(functions(text), [function("one", 1), function("three", 3)]);
    }
}
