//! Text files with fields between tabs, which are replaced as a whole.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

/// Writes the file beside its place, and then moves it there, so that readers see the old one or the new one.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not the path of a file"));
    };
    // Relaxed: only the number counts.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = name.to_owned();
    name.push(format!(".{}-{number}.new", std::process::id()));
    let beside = path.with_file_name(name);
    fs::write(&beside, text).and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        // It may not be there; the first error is the one to report.
        let _ = fs::remove_file(&beside);
    })
}

/// Replaces the characters that would end a field or a line.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\t' => escaped.push_str("\\t"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The text that was escaped; `None` if the escapes are not those of [`escape`].
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next()? {
                '\\' => '\\',
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            other => other,
        });
    }
    Some(plain)
}
