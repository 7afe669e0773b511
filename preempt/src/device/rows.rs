//! The shape of a copy: rows of bytes, with a pitch on each side.

use std::ptr;

/// Rows of bytes. In the target no two of them overlap. In the source they may: with a pitch of 0, each is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Bytes of a row.
    pub bytes: usize,
    pub count: usize,
    /// Bytes from the start of a row to that of the next one.
    pub from_pitch: usize,
    pub to_pitch: usize,
}

impl Rows {
    /// Bytes in one piece.
    pub fn one(bytes: usize) -> Rows {
        Rows { bytes, count: 1, from_pitch: bytes, to_pitch: bytes }
    }

    /// The same bytes again and again, without gaps.
    pub fn repeated(bytes: usize, count: usize) -> Rows {
        Rows { bytes, count, from_pitch: 0, to_pitch: bytes }
    }

    /// Bytes in all.
    pub fn total(self) -> usize {
        self.bytes * self.count
    }

    /// The same bytes as one row, where there are no gaps.
    pub fn joined(self) -> Rows {
        let Rows { bytes, count, from_pitch, to_pitch } = self;
        let is_dense = from_pitch == bytes && to_pitch == bytes;
        if is_dense || count == 1 || self.total() == 0 { Rows::one(self.total()) } else { self }
    }

    /// Whether the rows are the same row, more than once.
    pub fn is_repeated(self) -> bool {
        self.from_pitch == 0 && self.count > 1
    }

    /// These rows with a source without gaps.
    pub fn with_packed_source(self) -> Rows {
        Rows { from_pitch: self.bytes, ..self }.joined()
    }

    /// These rows with a target without gaps.
    pub fn with_packed_target(self) -> Rows {
        Rows { to_pitch: self.bytes, ..self }.joined()
    }

    /// Bytes from the first to the last of the source.
    pub fn source_span(self) -> usize {
        self.span(self.from_pitch)
    }

    /// Bytes from the first to the last of the target.
    pub fn target_span(self) -> usize {
        self.span(self.to_pitch)
    }

    fn span(self, pitch: usize) -> usize {
        match self.total() {
            0 => 0,
            _ => (self.count - 1) * pitch + self.bytes,
        }
    }

    /// Parts of at most `most` bytes that together are the whole.
    pub fn parts(self, most: usize) -> impl Iterator<Item = Part> {
        let rows = self.joined();
        let at_once = (most / rows.bytes.max(1)).clamp(1, rows.count.max(1));
        // Rows that are too long are parts of their own, in pieces.
        let piece = rows.bytes.min(most).max(1);
        (0..rows.count).step_by(at_once).flat_map(move |first| {
            let count = at_once.min(rows.count - first);
            (0..rows.bytes).step_by(piece).map(move |start| Part {
                from: first * rows.from_pitch + start,
                to: first * rows.to_pitch + start,
                rows: Rows { bytes: piece.min(rows.bytes - start), count, ..rows }.joined(),
            })
        })
    }
}

/// A part of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Bytes from the start of the source, and of the target.
    pub from: usize,
    pub to: usize,
    pub rows: Rows,
}

/// Copies rows between places that the host can use.
///
/// # Safety
///
/// Both places are valid for the rows. They overlap only if it is a single row.
pub(crate) unsafe fn copy_rows(from: *const u8, to: *mut u8, rows: Rows) {
    let Rows { bytes, count, from_pitch, to_pitch } = rows.joined();
    if rows.is_repeated() && to_pitch == bytes {
        // SAFETY: the first row is within both places; each step then doubles what is there.
        unsafe {
            ptr::copy(from, to, bytes);
            let (mut done, all) = (bytes, bytes * count);
            while done < all {
                let more = done.min(all - done);
                ptr::copy_nonoverlapping(to, to.add(done), more);
                done += more;
            }
        }
        return;
    }
    for row in 0..count {
        // SAFETY: the row is within both places.
        unsafe { ptr::copy(from.add(row * from_pitch), to.add(row * to_pitch), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a copy, in one piece or in parts, on targets of other bytes.
    fn copied(rows: Rows, most: Option<usize>) -> Vec<u8> {
        let from: Vec<u8> = (0..200).collect();
        let mut to = vec![255; 200];
        let parts: Vec<Part> = match most {
            None => vec![Part { from: 0, to: 0, rows }],
            Some(most) => rows.parts(most).collect(),
        };
        for Part { from: start, to: target, rows } in parts {
            assert!(most.is_none_or(|most| rows.total() <= most), "{rows:?}");
            // SAFETY: the rows of these tests lie within 200 bytes.
            unsafe { copy_rows(from.as_ptr().add(start), to.as_mut_ptr().add(target), rows) };
        }
        to
    }

    /// What a copy writes, byte by byte.
    fn expected(Rows { bytes, count, from_pitch, to_pitch }: Rows) -> Vec<u8> {
        let mut to = vec![255; 200];
        for row in 0..count {
            for byte in 0..bytes {
                to[row * to_pitch + byte] = (row * from_pitch + byte) as u8;
            }
        }
        to
    }

    #[test]
    fn rows_are_copied_whole_and_in_parts() {
        let shape =
            |bytes, count, from_pitch, to_pitch| Rows { bytes, count, from_pitch, to_pitch };
        for rows in [
            Rows::one(0),
            Rows::one(1),
            Rows::one(200),
            Rows::repeated(1, 200),
            Rows::repeated(3, 31),
            Rows::repeated(16, 1),
            shape(7, 9, 7, 7),
            shape(7, 9, 10, 7),
            shape(7, 9, 7, 20),
            shape(5, 10, 0, 20),
            shape(0, 9, 3, 3),
            shape(4, 0, 4, 4),
            shape(60, 2, 100, 70),
        ] {
            assert_eq!(copied(rows, None), expected(rows), "{rows:?}");
            for most in [1, 2, 10, 59, 64, 1000] {
                assert_eq!(copied(rows, Some(most)), expected(rows), "{rows:?} by {most}");
            }
        }
    }

    #[test]
    fn rows_without_gaps_are_one() {
        assert_eq!(Rows { bytes: 8, count: 4, from_pitch: 8, to_pitch: 8 }.joined(), Rows::one(32));
        assert_eq!(Rows::repeated(8, 1).joined(), Rows::one(8));
        assert_eq!(Rows::repeated(8, 4).with_packed_source(), Rows::one(32));
        let pitched = Rows { bytes: 8, count: 4, from_pitch: 9, to_pitch: 10 };
        assert_eq!(pitched.joined(), pitched);
        assert_eq!(pitched.with_packed_target(), Rows { to_pitch: 8, ..pitched });
    }
}
