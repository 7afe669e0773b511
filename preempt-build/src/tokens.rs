//! The tokens of a source file: what a compiler reads of it. Comments and spaces are left out, so that a hash of
//! tokens changes only with the program.
//!
//! What a program can still learn of its layout, the lines and columns of `line!` and of panics, is left out with them.
//! Kernels end in a trap without a message, so none of it is in their code.

use std::ffi::OsStr;
use std::path::Path;

/// The tokens of a source file, by the language that the ending of its name says; of other files, all of the text.
pub(super) fn of_source<'a>(path: &Path, text: &'a str) -> Vec<&'a str> {
    match path.extension().and_then(OsStr::to_str) {
        Some("rs") => tokens(text, Language::Rust),
        Some("ll") => tokens(text, Language::LlvmIr),
        _ => vec![text],
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    LlvmIr,
}

/// Splits `text` into words, literals and punctuation. Punctuation without a space in between is one token, because
/// `a && b` and `a & &b` differ; a comment separates tokens as a space does.
fn tokens(text: &str, language: Language) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if first.is_whitespace() {
            rest.len() - rest.trim_start().len()
        } else if let Some(len) = comment(rest, language) {
            len
        } else {
            let len = token(rest, language);
            tokens.push(&rest[..len]);
            len
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of the comment that `text` starts with.
fn comment(text: &str, language: Language) -> Option<usize> {
    let to_end_of_line = || text.find('\n').unwrap_or(text.len());
    match language {
        Language::Rust if text.starts_with("//") => Some(to_end_of_line()),
        Language::Rust if text.starts_with("/*") => Some(block_comment(text)),
        Language::LlvmIr if text.starts_with(';') => Some(to_end_of_line()),
        _ => None,
    }
}

/// The length of the block comment that `text` starts with; block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        match () {
            () if rest.starts_with(b"/*") => (at, depth) = (at + 2, depth + 1),
            () if rest.starts_with(b"*/") => (at, depth) = (at + 2, depth - 1),
            () => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of the token that `text` starts with, which is no space and no comment.
fn token(text: &str, language: Language) -> usize {
    let word = text.find(|c: char| !is_of_word(c)).unwrap_or(text.len());
    let behind = &text[word..];
    match &text[..word] {
        "" => {}
        "r" | "br" | "cr" if language == Language::Rust => {
            return word + raw_string(behind).unwrap_or(0);
        }
        // The prefix of a literal is a token of its own.
        _ => return word,
    }
    match text.as_bytes()[0] {
        b'"' => quoted(text, '"', language),
        b'\'' if language == Language::Rust => character(text),
        _ => punctuation(text, language),
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the raw string that `text` starts with, behind its letters: `#"` ... `"#`.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let inside = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &text[..hashes]);
    let start = hashes + 1;
    Some(inside.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// The length of the literal that `text` starts with, between two `quote`s.
fn quoted(text: &str, quote: char, language: Language) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            // In LLVM IR a quote is written as a number, and nothing takes the meaning from one.
            is_escaped = language == Language::Rust;
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

/// The length of the character, or of the quote of a lifetime, that `text` starts with.
fn character(text: &str) -> usize {
    let mut inside = text.chars().skip(1);
    match (inside.next(), inside.next()) {
        (Some('\\'), _) | (_, Some('\'')) => quoted(text, '\'', Language::Rust),
        _ => 1,
    }
}

/// The length of the punctuation that `text` starts with. Brackets, commas and semicolons stand alone, so that line
/// breaks beside them do not matter. A comma that is added before a bracket is a token: `(a,)` and `(a)` differ.
fn punctuation(text: &str, language: Language) -> usize {
    const ALONE: &str = "()[]{},;";
    let mut len = 0;
    for (at, c) in text.char_indices() {
        let is_end = c.is_whitespace()
            || is_of_word(c)
            || matches!(c, '"' | '\'')
            || ALONE.contains(c)
            || comment(&text[at..], language).is_some();
        if at > 0 && is_end {
            break;
        }
        len = at + c.len_utf8();
        if ALONE.contains(c) {
            break;
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(a: &str, b: &str) {
        assert_eq!(tokens(a, Language::Rust), tokens(b, Language::Rust));
    }

    #[track_caller]
    fn different(a: &str, b: &str) {
        assert_ne!(tokens(a, Language::Rust), tokens(b, Language::Rust));
    }

    #[test]
    fn comments_and_layout_are_no_tokens() {
        same("/// Doc.\nfn a() {} // end", "fn a()\n{\n}");
        same("//! Doc.\nfn a() {}", "fn a() {}");
        same("fn /* of /* b */ \" */ a() {}", "fn a() {}");
        same("/** Doc. */ fn a() {} /* open", "fn a() {}");
        same("f(a,\n  b)", "f(a, b)");
        same("a+b", "a + b");
        same("a &&/* and */ b", "a && b");
    }

    #[test]
    fn what_looks_like_a_comment_in_a_literal_is_none() {
        different("\"a // b\"", "\"a // c\"");
        different("\"\\\"// a\"", "\"\\\"// b\"");
        different("r#\"a \" // b\"#", "r#\"a \" // c\"#");
        different("br\"\\\" // a\n;b", "br\"\\\" // a\n;c");
        different("c\"//\" a", "c\"//\" b");
        different("'\"' // a\n; b '\"'", "'\"' // a\n; c '\"'");
        same("'\"' // a\n; b '\"'", "'\"' ; b '\"'");
        same("b'\\'' // a\n; b", "b'\\''; b");
        same("'\\u{22}' // \"\n;", "'\\u{22}';");
        different("\"a  b\"", "\"a b\"");
    }

    #[test]
    fn a_lifetime_starts_no_character() {
        same("&'a str /* 'a */ + 'b", "& 'a str + 'b");
        same("'outer: loop { break 'outer; } // '", "'outer: loop { break 'outer; }");
        different("fn f<'a>(x: &'a u8) { 'b' }", "fn f<'a>(x: &'a u8) { 'c' }");
        assert_eq!(tokens("f('a, 'b')", Language::Rust), ["f", "(", "'", "a", ",", "'b'", ")"]);
    }

    #[test]
    fn tokens_keep_what_tells_them_apart() {
        different("a && b", "a & &b");
        different("a b", "ab");
        different("r#\"a\"#", "r\"a\"");
        same("r#move // a", "r#move");
        different("1..2", "1. .2");
        different("fn größe() {}", "fn größte() {}");
        same("x = -1; // ü", "x = -1;");
    }

    #[test]
    fn a_file_is_read_in_its_own_language() {
        let of = |name: &str, text| of_source(Path::new(name), text).len();
        assert_eq!(of("a.rs", "a // b"), 1);
        assert_eq!(of("a.ll", "ret void ; b\n"), 2);
        assert_eq!(of("a.ll", "c\"\\22;\" ; b"), 2);
        assert_eq!(of("a.ll", "c\"\\\" ; b\n"), 2);
        assert_eq!(of("a.toml", "a // b"), 1);
        let toml = "a = 1 # b";
        assert_eq!(of_source(Path::new("a.toml"), toml), [toml]);
    }
}
