//! Bytes of a buffer.

/// The bytes of a buffer from `start` up to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ByteRange {
    pub start: u64,
    pub end: u64,
}

impl ByteRange {
    /// All of a buffer that has this many bytes.
    pub const fn whole(bytes: usize) -> ByteRange {
        ByteRange { start: 0, end: bytes as u64 }
    }

    /// Whether a byte is in both. An empty range overlaps none.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// Whether every byte of `other` is in this one.
    pub fn covers(self, other: ByteRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The bytes of this range before `other`, and those after it; each may be empty.
    pub fn around(self, other: ByteRange) -> [ByteRange; 2] {
        let ByteRange { start, end } = self;
        [
            ByteRange { start, end: end.min(other.start) },
            ByteRange { start: start.max(other.end), end },
        ]
    }

    /// Whether no byte is in it.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}
