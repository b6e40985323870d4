//! The words of a command line, split as a POSIX shell splits them. Nothing is expanded: no variables, no globs, no `~`.

/// The words of a command line; `None` if a quote is not closed, or if it ends with a backslash.
pub(super) fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Adds the text up to the closing double quote. A backslash is special only before `"`, `\`, `$` and a backquote.
fn quoted(chars: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match chars.next()? {
            '"' => return Some(()),
            '\\' => match chars.next()? {
                c @ ('"' | '\\' | '$' | '`') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        for line in [
            "helper --profile lab",
            "  two   blanks\tand a tab ",
            r#""/opt/my tools/helper" --name 'it is so' x"#,
            r#"/opt/my\ tools/helper a\"b\'c \\"#,
            r#"a"b c"d'e f'"#,
            r#"--json='{"a": "b\n"}' "" ''"#,
            r#""a\"b\\c\$d\`e\f""#,
            "#not-a-comment",
            "",
        ] {
            let shell = std::process::Command::new("sh")
                .args(["-c", &format!("printf '%s\\n' {}", line.replace('#', "\\#"))])
                .output()
                .unwrap();
            let expected = String::from_utf8(shell.stdout).unwrap();
            // Without arguments, `printf` prints an empty line too.
            let words = words(line).unwrap();
            assert_eq!(words.join("\n") + "\n", expected, "{line}");
        }
    }

    #[test]
    fn an_open_quote_is_refused() {
        for line in ["a 'b", "a \"b", "a \\", "\"a\\"] {
            assert_eq!(words(line), None, "{line}");
        }
    }
}
