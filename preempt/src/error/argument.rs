use std::sync::Arc;

/// A buffer, an event or memory that cannot be used as it was passed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Memory that one argument writes is passed a second time: a buffer, or ranges of it that overlap.
    #[error(
        "`{name}` is passed memory that it writes more than once; a kernel may assume that nothing else \
         touches what it writes: pass a copy, ranges that do not overlap, or one `SliceMut` for both uses"
    )]
    BufferConflict {
        /// The kernel's name, or what the copy is called.
        name: &'static str,
    },
    /// Memory that is bound to another device: a buffer that was adopted there, or is used there by its address.
    #[error(
        "`{name}` is passed memory that is bound to another device; use it on that one, or allocate it \
         through this scheduler: other buffers are moved by launches and copies"
    )]
    ForeignBuffer {
        /// The kernel's name, or what the copy is called.
        name: &'static str,
    },
    /// A buffer whose contents are on another device, which has no scheduler to copy them.
    #[error(
        "`{name}` uses a buffer whose contents are on another device without a scheduler ({device}); keep \
         that device's scheduler until the contents are copied, or build another one for it"
    )]
    ContentsElsewhere {
        /// The kernel's name, or what the copy is called.
        name: &'static str,
        /// The other device's name.
        device: Arc<str>,
    },
    /// An event of another scheduler.
    #[error(
        "the event was recorded in a stream of another scheduler, which orders only its own streams; have the host \
         wait for it with `Event::synchronize`"
    )]
    ForeignEvent,
    /// Memory that was passed by its address and does not lie in one allocation.
    #[error(
        "`{name}` is passed {bytes} bytes at {address:#x}, which do not lie in one allocation of this \
         device's context; pass what was allocated there and is not freed yet, and a `Buffer` as itself"
    )]
    NotAllocated {
        /// The kernel's name, or what was to be done.
        name: &'static str,
        /// Where the memory starts.
        address: u64,
        /// How many bytes were passed.
        bytes: usize,
    },
    /// The memory of a buffer that workers can have, as the application's own.
    #[error(
        "the memory of a buffer of `Run::shared` cannot be given away, because the driver's `cuMemFree` does not free it; copy \
         the contents to another buffer"
    )]
    NotGivenAway,
    /// A copy between places of different lengths.
    #[error("a copy of {from} elements into {to}; both sides have the same length")]
    LengthMismatch {
        /// Elements in the source.
        from: usize,
        /// Elements in the target.
        to: usize,
    },
    /// Rows of a copy that overlap, or lie too far apart.
    #[error(
        "rows of {width} elements at a pitch of {pitch}; a pitch is at least the width, and less than 2 GiB"
    )]
    BadPitch {
        /// Elements from the start of a row to that of the next one.
        pitch: usize,
        /// Elements of a row.
        width: usize,
    },
    /// A copy of rows beyond the end of what it reads or writes.
    #[error(
        "a copy of rows to the element {needed} of {len}; make the rows shorter or fewer, or the pitch smaller"
    )]
    BeyondEnd {
        /// Elements up to the end of the last row.
        needed: usize,
        /// Elements that there are.
        len: usize,
    },
    /// A range of elements that a buffer, or a range of it, does not have.
    #[error(
        "a range of the elements {start}..{end} where there are {len}; it starts before its end, and ends at \
         {len} or before"
    )]
    OutOfRange {
        /// The first element of the range.
        start: usize,
        /// The element behind its last one.
        end: usize,
        /// How many elements there are.
        len: usize,
    },
}
