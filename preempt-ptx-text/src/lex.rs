//! The tokens of PTX, blanks and comments included: put together they are the text again.

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Blanks or a comment.
    Blank,
    /// A name, a directive (`.reg`), or an operation with its modifiers (`ld.global.b32`).
    Word,
    Number,
    /// With its quotes.
    Quoted,
    /// One character that is none of these: a separator, an operator, or what PTX does not have.
    Mark(char),
    /// A comment or a quotation that does not end.
    Unended,
}

/// A piece of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    /// Bytes from the start of the text.
    pub start: usize,
}

impl Token<'_> {
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }

    pub fn is(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// The tokens of a text.
#[derive(Clone, Debug)]
pub(crate) struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    pub fn of(text: &'a str) -> Tokens<'a> {
        Tokens { text, at: 0 }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let rest = &self.text[self.at..];
        let first = match *rest.as_bytes().first()? {
            ascii if ascii.is_ascii() => char::from(ascii),
            _ => rest.chars().next()?,
        };
        let (kind, len) = match first {
            ' ' | '\t' | '\r' | '\n' | '\x0b' | '\x0c' => (Kind::Blank, while_in(rest, is_blank)),
            '/' if rest.starts_with("//") => (Kind::Blank, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => match rest[2..].find("*/") {
                Some(end) => (Kind::Blank, end + 4),
                None => (Kind::Unended, rest.len()),
            },
            '"' => match rest[1..].find('"') {
                Some(end) => (Kind::Quoted, end + 2),
                None => (Kind::Unended, rest.len()),
            },
            '0'..='9' => (Kind::Number, number(rest)),
            c if starts_word(c, rest) => (Kind::Word, word(rest)),
            c => (Kind::Mark(c), c.len_utf8()),
        };
        let token = Token { kind, text: &rest[..len], start: self.at };
        self.at += len;
        Some(token)
    }
}

fn is_blank(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c)
}

/// Of each byte whether it may be within a name: texts are read byte by byte, several times each.
static INSIDE: [bool; 256] = {
    let (mut inside, mut c) = ([false; 256], 0);
    while c < 256 {
        inside[c] = (c as u8).is_ascii_alphanumeric() || c == b'_' as usize || c == b'$' as usize;
        c += 1;
    }
    inside
};

fn is_inside(c: u8) -> bool {
    INSIDE[usize::from(c)]
}

fn while_in(text: &str, is: impl Fn(u8) -> bool) -> usize {
    text.bytes().position(|c| !is(c)).unwrap_or(text.len())
}

/// `%` alone is the operator of a constant expression, and `.` alone is nothing.
fn starts_word(c: char, text: &str) -> bool {
    let next = text.as_bytes().get(1).copied().unwrap_or(b' ');
    match c {
        '_' | '$' => true,
        '%' => is_inside(next) && !next.is_ascii_digit() || next == b'%',
        '.' => next.is_ascii_alphabetic() || next == b'_',
        c => c.is_ascii_alphabetic(),
    }
}

/// State spaces, which stand alone even where a type follows at once (`.reg.b32`).
const SPACES: [&str; 6] = [".reg", ".param", ".shared", ".local", ".global", ".const"];

/// A word goes on behind `.` and, within the modifiers of an operation, behind `::`.
fn word(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 1 + while_in(&text[1..], |c| c == b'%');
    let mut is_modified = bytes[0] == b'.';
    loop {
        end += while_in(&text[end..], is_inside);
        let inside_at = |at: usize| bytes.get(at).is_some_and(|&c| is_inside(c));
        if bytes.get(end) == Some(&b'.') && inside_at(end + 1) && !SPACES.contains(&&text[..end]) {
            (end, is_modified) = (end + 1, true);
        } else if is_modified && bytes[end..].starts_with(b"::") && inside_at(end + 2) {
            end += 2;
        } else {
            return end;
        }
    }
}

/// Integers of any base, floating-point numbers as decimals or as bits (`0f3F800000`).
fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_decimal = !matches!(bytes.get(1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
    let mut end = 1;
    loop {
        end += while_in(&text[end..], |c| c.is_ascii_alphanumeric() || c == b'.' || c == b'_');
        let signed = bytes.get(end).is_some_and(|c| matches!(c, b'+' | b'-'))
            && matches!(bytes[end - 1], b'e' | b'E')
            && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
        if !(is_decimal && signed) {
            return end;
        }
        end += 1;
    }
}

#[cfg(test)]
mod tests;
