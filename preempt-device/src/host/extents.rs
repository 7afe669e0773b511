//! Grids and blocks: as a launch names them, and as a device has them.

use std::fmt;

/// Extents in x, y and z: of a grid in block-tasks, or of a block in threads.
///
/// ```
/// use preempt_device::host::Dim3;
/// assert_eq!(Dim3::from((8, 4)), Dim3 { x: 8, y: 4, z: 1 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// Extent in x.
    pub x: u32,
    /// Extent in y.
    pub y: u32,
    /// Extent in z.
    pub z: u32,
}

impl Dim3 {
    /// `x` by `y` by `z`.
    pub const fn new(x: u32, y: u32, z: u32) -> Dim3 {
        Dim3 { x, y, z }
    }

    /// The product of the three extents.
    pub const fn count(self) -> u128 {
        self.x as u128 * self.y as u128 * self.z as u128
    }
}

impl fmt::Debug for Dim3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.x, self.y, self.z)
    }
}

impl fmt::Display for Dim3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl From<u32> for Dim3 {
    fn from(x: u32) -> Dim3 {
        Dim3 { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim3 {
    fn from((x, y): (u32, u32)) -> Dim3 {
        Dim3 { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    fn from((x, y, z): (u32, u32, u32)) -> Dim3 {
        Dim3 { x, y, z }
    }
}

/// Requested extents, of any size and sign. A launch refuses those that no device supports.
///
/// ```
/// use preempt_device::host::{Dim3, Extents, IntoExtents};
/// let extents: Extents = (-1, 1u64 << 40).into_extents();
/// assert_eq!(extents.to_string(), "-1x1099511627776x1");
/// assert_eq!(extents.clamped(), Dim3::new(0, u32::MAX, 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extents([i128; 3]);

impl Extents {
    /// The nearest extents that a [`Dim3`] can hold. No device supports an extent of 0 or of [`u32::MAX`].
    pub fn clamped(self) -> Dim3 {
        let [x, y, z] = self.0.map(|extent| extent.clamp(0, u32::MAX.into()) as u32);
        Dim3 { x, y, z }
    }

    /// The blocks that cover these threads; `None` if a block has no threads.
    pub(super) fn in_blocks_of(self, block: Dim3) -> Option<Extents> {
        // Both have 64 bits at most, so nothing overflows.
        let blocks = |(threads, block): (i128, u32)| {
            let block = i128::from(block);
            (threads + block - 1).checked_div_euclid(block)
        };
        let [x, y, z] = self.0;
        let (x, y, z) = ((x, block.x), (y, block.y), (z, block.z));
        Some(Extents([blocks(x)?, blocks(y)?, blocks(z)?]))
    }
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extents([x, y, z]) = self;
        write!(f, "{x}x{y}x{z}")
    }
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A number of blocks or threads: an integer of up to 64 bits.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of blocks or threads",
    label = "not an integer",
    note = "grids and blocks are given as integers, such as `n.div_ceil(256)` with `n: usize`, or tuples of two or three"
)]
pub trait Extent {
    /// The number.
    fn extent(self) -> i128;
}

macro_rules! integers {
    ($($ty:ty)*) => {
        $(
            impl Extent for $ty {
                fn extent(self) -> i128 {
                    self as i128
                }
            }

            impl IntoExtents for $ty {
                fn into_extents(self) -> Extents {
                    Extents([self.extent(), 1, 1])
                }
            }
        )*
    };
}
integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

/// The size of a grid or block: an integer, a tuple of two or three, or a [`Dim3`].
///
/// The integers can have any type. A launch refuses sizes that the device does not support.
///
/// ```
/// use preempt_device::host::IntoExtents;
/// let n: usize = 1000;
/// assert_eq!(n.div_ceil(256).into_extents(), 4.into_extents());
/// assert_eq!((4, 1u32, 1usize).into_extents(), 4.into_extents());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the size of a grid or block",
    label = "not an integer, nor a tuple of two or three",
    note = "grids and blocks are given as integers, such as `n.div_ceil(256)` with `n: usize`, or tuples of two or three"
)]
pub trait IntoExtents {
    /// The extents.
    fn into_extents(self) -> Extents;
}

impl<X: Extent, Y: Extent> IntoExtents for (X, Y) {
    fn into_extents(self) -> Extents {
        Extents([self.0.extent(), self.1.extent(), 1])
    }
}

impl<X: Extent, Y: Extent, Z: Extent> IntoExtents for (X, Y, Z) {
    fn into_extents(self) -> Extents {
        Extents([self.0.extent(), self.1.extent(), self.2.extent()])
    }
}

impl IntoExtents for Dim3 {
    fn into_extents(self) -> Extents {
        (self.x, self.y, self.z).into_extents()
    }
}

impl IntoExtents for Extents {
    fn into_extents(self) -> Extents {
        self
    }
}

/// The grid of a [`Call`](super::Call) that can be launched.
#[derive(Clone, Copy, Debug)]
pub struct Grid(pub(super) GridRequest);

/// A grid in the unit in which it was requested.
#[derive(Clone, Copy, Debug)]
pub(super) enum GridRequest {
    Tasks(Extents),
    Threads(Extents),
}

/// The absent grid of a [`Call`](super::Call) that cannot be launched yet.
#[derive(Clone, Copy, Debug)]
pub struct NoGrid;

/// Implemented by [`Grid`] alone: a [`Call`](super::Call) without one cannot be launched.
#[diagnostic::on_unimplemented(
    message = "this launch does not say how many block-tasks it has",
    label = "no grid",
    note = "say how many block-tasks, `.grid(n)`, or for how many threads, `.threads(n)`"
)]
pub trait HasGrid: Copy + Into<Grid> {}

impl HasGrid for Grid {}
