//! The current emulated GPU thread of a host thread, and the primitives in terms of it.

use std::cell::Cell;
use std::panic::Location;
use std::ptr;

use crate::host::Dim3;
use crate::warp::Reduction;
use crate::yields::Yields;

/// The indices and extents of an emulated thread, and the function in which it waits for others.
#[derive(Clone, Copy, Debug)]
pub struct ThreadContext {
    /// The thread's index in its block.
    pub thread: Dim3,
    /// The block-task's index in its grid.
    pub block: Dim3,
    /// Threads in a block.
    pub block_dim: Dim3,
    /// Block-tasks in the grid.
    pub grid_dim: Dim3,
    /// The emulated SM.
    pub sm: u32,
    /// The block's shared memory.
    pub shared: *mut u8,
    /// The state of the thread's yield points.
    pub yields: Yields,
    /// Suspends the thread until the others have reached the same operation, and returns the answer of
    /// [`Operation`].
    pub wait: fn(Rendezvous) -> u64,
}

/// An operation in which a thread of an emulated block waits for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rendezvous {
    /// The operation.
    pub operation: Operation,
    /// The call in the kernel's source. Threads that meet have the same one.
    pub site: &'static Location<'static>,
}

/// An operation in which threads of a block wait for each other.
///
/// The emulator resumes the thread with the answer that is described at each variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A barrier of the whole block; the answer is the number of threads with a true predicate.
    Barrier {
        /// This thread's predicate.
        predicate: bool,
    },
    /// A yield point of the whole block; the answer is the number of threads that have `taken` set.
    YieldVote {
        /// Whether this thread knows that the SM was taken; in kernels with markers, whether it has nothing against a drop.
        taken: bool,
    },
    /// Every thread in `mask` of the warp; the answer has a bit for each true predicate.
    WarpBallot {
        /// The lanes that take part.
        mask: u32,
        /// This lane's predicate.
        predicate: bool,
    },
    /// Every thread in `mask` of the warp. The answer has a bit for each lane with this lane's value; or, for `all`,
    /// for each lane in the mask if all have the same value, and is 0 otherwise.
    WarpMatch {
        /// The lanes that take part.
        mask: u32,
        /// This lane's value.
        value: u64,
        /// Whether all lanes have to have the same value.
        all: bool,
    },
    /// Every thread in `mask` of the warp; the answer is the reduction of all values.
    WarpReduce {
        /// The lanes that take part.
        mask: u32,
        /// This lane's value.
        value: u32,
        /// What is made of two values.
        reduction: Reduction,
    },
    /// Every thread in `mask` of the warp; the answer is the source lane's `value`.
    WarpShuffle(WarpShuffle),
}

/// A lane's part in a shuffle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WarpShuffle {
    /// The lanes that take part.
    pub mask: u32,
    /// The value that this lane offers.
    pub value: u32,
    /// The lane whose value this lane takes.
    pub source: u32,
}

thread_local! {
    static CURRENT: Cell<*const ThreadContext> = const { Cell::new(ptr::null()) };
}

/// Runs `body` as the emulated thread `context`.
///
/// An emulator of a block calls this each time it switches to one of the block's threads.
///
/// # Safety
///
/// `body` ends, or is suspended by `context.wait`, before `context` is dropped. Kernels do not call this.
pub unsafe fn with_thread<R>(context: &ThreadContext, body: impl FnOnce() -> R) -> R {
    struct Restore(*const ThreadContext);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.replace(context));
    body()
}

fn current() -> ThreadContext {
    let context = CURRENT.get();
    assert!(
        !context.is_null(),
        "a kernel primitive was called outside of a kernel: block and thread indices, barriers \
         and warp operations exist only while a device runs the kernel"
    );
    // SAFETY: `with_thread` keeps the reference alive while the pointer is set.
    unsafe { *context }
}

/// The primitives under the names that the GPU target has too.
pub(crate) mod primitives {
    use std::panic::Location;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    use super::{Operation, Rendezvous, WarpShuffle, current};
    use crate::warp::Reduction;
    use crate::yields::Yields;

    macro_rules! registers {
        ($($name:ident = $field:ident.$axis:ident;)*) => {
            $(pub(crate) fn $name() -> u32 { current().$field.$axis })*
        };
    }
    registers! {
        thread_idx_x = thread.x; thread_idx_y = thread.y; thread_idx_z = thread.z;
        block_idx_x = block.x; block_idx_y = block.y; block_idx_z = block.z;
        block_dim_x = block_dim.x; block_dim_y = block_dim.y; block_dim_z = block_dim.z;
        grid_dim_x = grid_dim.x; grid_dim_y = grid_dim.y; grid_dim_z = grid_dim.z;
    }

    pub(crate) fn sm_id() -> u32 {
        current().sm
    }

    pub(crate) fn is_first_thread() -> bool {
        (thread_idx_x(), thread_idx_y(), thread_idx_z()) == (0, 0, 0)
    }

    pub(crate) fn opaque(value: u32) -> u32 {
        value
    }

    pub(crate) fn shared_base() -> *mut u8 {
        current().shared
    }

    pub(crate) fn yields() -> Yields {
        current().yields
    }

    fn threads() -> u32 {
        current().block_dim.count() as u32
    }

    /// Waits in an operation whose place in the source is the caller's.
    #[track_caller]
    fn wait(operation: Operation) -> u64 {
        (current().wait)(Rendezvous { operation, site: Location::caller() })
    }

    #[track_caller]
    pub(crate) fn sync_threads() {
        wait(Operation::Barrier { predicate: false });
    }

    #[track_caller]
    pub(crate) fn yield_vote(taken: bool) -> bool {
        wait(Operation::YieldVote { taken }) != 0
    }

    #[track_caller]
    pub(crate) fn yield_vote_all(drops: bool) -> bool {
        wait(Operation::YieldVote { taken: drops }) as u32 == threads()
    }

    #[track_caller]
    pub(crate) fn sync_threads_count(predicate: u32) -> u32 {
        wait(Operation::Barrier { predicate: predicate != 0 }) as u32
    }

    #[track_caller]
    pub(crate) fn sync_threads_and(predicate: u32) -> u32 {
        u32::from(sync_threads_count(predicate) == threads())
    }

    #[track_caller]
    pub(crate) fn sync_threads_or(predicate: u32) -> u32 {
        u32::from(sync_threads_count(predicate) != 0)
    }

    #[track_caller]
    pub(crate) fn sync_warp(mask: u32) {
        warp_vote_ballot(mask, false);
    }

    #[track_caller]
    pub(crate) fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
        wait(Operation::WarpBallot { mask, predicate }) as u32
    }

    #[track_caller]
    pub(crate) fn warp_match_any(mask: u32, value: u64, _bits: u32) -> u32 {
        wait(Operation::WarpMatch { mask, value, all: false }) as u32
    }

    #[track_caller]
    pub(crate) fn warp_match_all(mask: u32, value: u64, _bits: u32) -> u32 {
        wait(Operation::WarpMatch { mask, value, all: true }) as u32
    }

    #[track_caller]
    pub(crate) fn warp_reduce(mask: u32, value: u32, reduction: Reduction) -> u32 {
        wait(Operation::WarpReduce { mask, value, reduction }) as u32
    }

    /// Each emulated thread runs on its own.
    pub(crate) fn active_mask() -> u32 {
        1 << crate::warp::lane_id()
    }

    /// Exchanges values between lanes. `source` maps this lane and the first lane of its group to the lane
    /// that is read; `None` where the instruction does not allow that (PTX ISA, `shfl.sync`).
    #[track_caller]
    fn shuffle(
        mask: u32,
        value: u32,
        by: u32,
        width: u32,
        source: impl FnOnce(u32, u32) -> Option<u32>,
    ) -> (u32, bool) {
        assert!(
            width.is_power_of_two() && width <= 32,
            "a warp shuffle of width {width}; it is 1, 2, 4, 8, 16 or 32"
        );
        assert!(
            by < 32,
            "a warp shuffle by {by} lanes; a warp has 32, and a GPU looks at the lowest five bits alone"
        );
        let lane = crate::warp::lane_id();
        let source = source(lane, lane & !(width - 1));
        let inside = source.is_some();
        let source = source.unwrap_or(lane);
        let shuffle = WarpShuffle { mask, value, source };
        (wait(Operation::WarpShuffle(shuffle)) as u32, inside)
    }

    #[track_caller]
    pub(crate) fn warp_shuffle_down(mask: u32, value: u32, delta: u32, width: u32) -> (u32, bool) {
        shuffle(mask, value, delta, width, |lane, group| {
            lane.checked_add(delta).filter(|&source| source < group + width)
        })
    }

    #[track_caller]
    pub(crate) fn warp_shuffle_up(mask: u32, value: u32, delta: u32, width: u32) -> (u32, bool) {
        shuffle(mask, value, delta, width, |lane, group| {
            lane.checked_sub(delta).filter(|&source| source >= group)
        })
    }

    #[track_caller]
    pub(crate) fn warp_shuffle_xor(mask: u32, value: u32, xor: u32, width: u32) -> (u32, bool) {
        shuffle(mask, value, xor, width, |lane, group| {
            Some(lane ^ xor).filter(|&source| source < group + width)
        })
    }

    #[track_caller]
    pub(crate) fn warp_shuffle_idx(mask: u32, value: u32, index: u32, width: u32) -> (u32, bool) {
        shuffle(mask, value, 0, width, |_, group| Some(group + index % width))
    }

    macro_rules! fences {
        ($($name:ident = $order:ident;)*) => {
            $(pub(crate) fn $name() {
                std::sync::atomic::fence(std::sync::atomic::Ordering::$order);
            })*
        };
    }
    // A narrower scope than the whole process does not exist.
    fences! {
        block_fence = SeqCst;
        device_fence = SeqCst;
        system_fence = SeqCst;
        block_fence_acq_rel = AcqRel;
        device_fence_acq_rel = AcqRel;
        system_fence_acq_rel = AcqRel;
    }

    pub(crate) fn clock64() -> u64 {
        global_timer()
    }

    pub(crate) fn global_timer() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    pub(crate) fn nanosleep(nanos: u32) {
        std::thread::sleep(Duration::from_nanos(nanos.min(1_000_000).into()));
    }

    macro_rules! atomics {
        ($(
            $atomic:ident $bits:ty: $load:ident $store:ident $cas:ident,
            { $($name:ident = $method:ident;)* }
            $signed:ident { $($signed_name:ident = $signed_method:ident;)* }
        )*) => {
            $(
                pub(crate) unsafe fn $load(ptr: *mut $bits, _system: bool) -> $bits {
                    // SAFETY: the caller's promise.
                    unsafe { $atomic::from_ptr(ptr) }.load(Relaxed)
                }

                pub(crate) unsafe fn $store(ptr: *mut $bits, value: $bits, _system: bool) {
                    // SAFETY: the caller's promise.
                    unsafe { $atomic::from_ptr(ptr) }.store(value, Relaxed)
                }

                pub(crate) unsafe fn $cas(
                    ptr: *mut $bits,
                    current: $bits,
                    new: $bits,
                    _system: bool,
                ) -> $bits {
                    // SAFETY: the caller's promise.
                    let atomic = unsafe { $atomic::from_ptr(ptr) };
                    match atomic.compare_exchange(current, new, Relaxed, Relaxed) {
                        Ok(before) | Err(before) => before,
                    }
                }

                $(pub(crate) unsafe fn $name(ptr: *mut $bits, value: $bits) -> $bits {
                    // SAFETY: the caller's promise.
                    unsafe { $atomic::from_ptr(ptr) }.$method(value, Relaxed)
                })*

                $(pub(crate) unsafe fn $signed_name(ptr: *mut $bits, value: $bits) -> $bits {
                    // SAFETY: the caller's promise; the layout is the same.
                    unsafe { $signed::from_ptr(ptr.cast()) }
                        .$signed_method(value.cast_signed(), Relaxed)
                        .cast_unsigned()
                })*
            )*
        };
    }
    atomics! {
        AtomicU32 u32: atomic_load_32 atomic_store_32 atomic_cas_32,
            { atomic_xchg_32 = swap; atomic_add_32 = fetch_add; atomic_and_32 = fetch_and;
            atomic_or_32 = fetch_or; atomic_xor_32 = fetch_xor;
            atomic_umin_32 = fetch_min; atomic_umax_32 = fetch_max; }
            AtomicI32 { atomic_min_32 = fetch_min; atomic_max_32 = fetch_max; }
        AtomicU64 u64: atomic_load_64 atomic_store_64 atomic_cas_64,
            { atomic_xchg_64 = swap; atomic_add_64 = fetch_add; atomic_and_64 = fetch_and;
            atomic_or_64 = fetch_or; atomic_xor_64 = fetch_xor;
            atomic_umin_64 = fetch_min; atomic_umax_64 = fetch_max; }
            AtomicI64 { atomic_min_64 = fetch_min; atomic_max_64 = fetch_max; }
    }

    macro_rules! atomic_adds {
        ($($name:ident $atomic:ident $float:ident;)*) => {
            $(pub(crate) unsafe fn $name(ptr: *mut $float, value: $float) -> $float {
                // SAFETY: the caller's promise; the layout is the same.
                let atomic = unsafe { $atomic::from_ptr(ptr.cast()) };
                let add = |bits| Some(($float::from_bits(bits) + value).to_bits());
                match atomic.fetch_update(Relaxed, Relaxed, add) {
                    Ok(before) | Err(before) => $float::from_bits(before),
                }
            })*
        };
    }
    atomic_adds! {
        atomic_add_f32 AtomicU32 f32;
        atomic_add_f64 AtomicU64 f64;
    }

    macro_rules! rounded {
        ($($name:ident $float:ident: $std:ident($($arg:ident),*);)*) => {
            $(pub(crate) fn $name(x: $float, $($arg: $float),*) -> $float { x.$std($($arg),*) })*
        };
    }
    rounded! {
        fmaf f32: mul_add(a, b);
        fma f64: mul_add(a, b);
        sqrtf f32: sqrt();
        sqrt f64: sqrt();
        floorf f32: floor();
        floor f64: floor();
        ceilf f32: ceil();
        ceil f64: ceil();
        truncf f32: trunc();
        trunc f64: trunc();
        rintf f32: round_ties_even();
        rint f64: round_ties_even();
    }
}
