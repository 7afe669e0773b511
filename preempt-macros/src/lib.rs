//! `#[preemptible]` and `#[derive(KernelArg)]`.
//!
//! Use them through `preempt_device`, which exports both and which their expansions refer to.
//!
//! | module | what is in it |
//! | --- | --- |
//! | `errors`, `names`, `conditions`, `primitives`, `device_crate` | the vocabulary of all stages |
//! | `parse` | options and signature become a model, or errors |
//! | `analyze` | whether all threads reach each barrier and yield point of the body, and whether a block-task can run again |
//! | `rewrite` | shared arrays get addresses, yield points become tests or votes, markers are planted, and checkpoints become loops |
//! | `generate` | the functions for host and device come out |
//! | `expand` | one stage after the other |
//! | `derive`, `kernel_attribute` | `#[derive(KernelArg)]`, and the `#[kernel]` that replaces rust-cuda's |
//!
//! A module uses those in rows above its own. The test `layers` in the workspace's `tests` keeps it so.

use expand::expand_kernel;
use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;

mod analyze;
mod conditions;
mod derive;
mod device_crate;
mod errors;
mod expand;
mod generate;
mod kernel_attribute;
mod names;
mod parse;
mod primitives;
mod rewrite;
#[cfg(test)]
mod tests;

/// Makes a kernel preemptible: a function that says what one thread of one block does.
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// `out[i] = a[i] + b[i]`
/// #[preemptible(block = 256)]
/// pub fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
///     let i = thread::index_1d() as usize;
///     if i < out.len() {
///         // SAFETY: each thread writes its own element.
///         unsafe { out.write(i, a[i] + b[i]) }
///     }
/// }
/// ```
///
/// On the GPU this is two entries with the same body: `add`, a worker loop that can be preempted between
/// block-tasks, and `add__plain`, which runs as one plain grid. A kernel's name is its symbol, so it is
/// unique in its kernels crate, whatever its module. Kernels of two crates may have the same name. For the same
/// reason no kernel is inside of a generic function or `impl`.
///
/// On the host it is the launch function, with the same name, visibility and attributes. It takes buffers
/// where the kernel takes slices and pointers, and returns a `host::Call<NoGrid>`. With `.grid(blocks)` or
/// `.threads(threads)` that becomes a `host::Call`, which a stream of the `preempt` crate launches on a GPU
/// or on the CPU device:
///
/// ```
/// # mod kernels {
/// #     use preempt_device::prelude::*;
/// #     #[preemptible(block = 256)]
/// #     pub fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {}
/// # }
/// use preempt_device::host::{Call, ReadArg, WriteArg};
///
/// fn sum(
///     a: impl ReadArg<'static, f32>,
///     b: impl ReadArg<'static, f32>,
///     sum: impl WriteArg<'static, f32>,
/// ) -> Call<'static> {
///     kernels::add(a, b, sum).grid(64)
/// }
/// ```
///
/// # Options
///
/// | option | meaning |
/// | --- | --- |
/// | `block = 256`, `block = (x, y)`, `block = (x, y, z)` | threads in a block, for every launch; constants of type `u32`, at most 1024 in all and 64 in z |
/// | `amortize = 16` | the amortizing factor (FLEP section 4.1): the most block-tasks that a block claims at once, unless the launch sets another; a constant of type `u32`, at least 1. With `amortize = auto`, the default, the worker loop chooses: it looks at the signal about every 7 µs, and claims two or four times as many tasks where blocks would wait for each other's claims |
/// | `idempotent` | the author's word that a block-task may be stopped at any of its [yield points](#yield-points) and run again from its start; needed where the macro [cannot prove it](#what-the-macro-proves), and without effect in a kernel without yield points. With it, no [markers](#markers) are planted |
/// | `yield_in_loops` | a yield point at the start of each round of each loop of the body, but not in closures; with barriers in the body, only of loops that provably all threads of a block run together. Barriers in helper functions are not seen: with those, write a barrier in the body, or leave the option out |
/// | `explain` | a warning that says what the macro has proved of the kernel's yield points, up to which line, and why no more; or of what stands ahead of its checkpoint |
/// | `instances(8, 16)` | the [constants](#constants-as-parameters) that a generic kernel is compiled for |
/// | `crate = path` | the path of `preempt_device`, where neither that nor `preempt` is a dependency of the package; that crate and no other, because the expansion is `unsafe` code that trusts it |
///
/// # Parameters
///
/// | the kernel takes | the launch takes | |
/// | --- | --- | --- |
/// | `&[T]` | `impl ReadArg<'_, T>` | not written during the launch |
/// | `*const T` | `impl ReadArg<'_, T>` | not written during the launch; without the length, and null if the buffer is empty |
/// | `PerThread<T>` | `impl WriteArg<'_, T>` | written; each thread has its own element, without `unsafe`; grid and block have one dimension |
/// | `SliceMut<T>` | `impl WriteArg<'_, T>` | written; every thread holds the same one |
/// | `*mut T` | `impl WriteArg<'_, T>` | written; without the length, and null if the buffer is empty |
/// | any other `T` | `T` | a number, or a struct with `#[derive(KernelArg)]` |
///
/// `T` is `KernelArg` throughout. `&mut` is refused: all threads would hold the same unique reference, and
/// the compiler would keep its target in registers across barriers. The launch function of an `unsafe fn` is
/// `unsafe` too: the caller of the launch makes the promise of the kernel.
///
/// All arguments have room in 4096 bytes, with those of the worker loop: larger ones go into a buffer. There are no
/// pointers in buffers and structs, because a launch knows only the buffers that are its arguments.
///
/// # Constants as parameters
///
/// A kernel can be generic over constants. Each of its entries is one symbol, so the attribute lists the constants that the
/// kernel is launched with: `instances(8, 16)`, or `instances((8, true), (16, false))` if there is more than one parameter.
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// Sums each run of `N` elements.
/// #[preemptible(block = N as u32, instances(64, 256))]
/// pub fn sums<const N: usize>(x: &[u32], sums: SliceMut<u32>) {
///     let (partial, t) = (shared_array![u32; N], thread::thread_idx_x() as usize);
///     let i = thread::index_1d() as usize;
///     // SAFETY: one element for each thread, and a barrier before others read it.
///     unsafe {
///         partial.add(t).write(if i < x.len() { x[i] } else { 0 });
///         thread::sync_threads();
///         if t == 0 {
///             sums.write(i / N, (0..N).map(|i| *partial.add(i)).sum());
///         }
///     }
/// }
/// ```
///
/// The launch names the constants, `sums::<64>(&x, &mut y)`. A constant that is not listed is an error:
///
/// ```compile_fail
/// # use preempt_device::host::{Call, NoGrid};
/// # use preempt_device::prelude::*;
/// # #[preemptible(instances(64, 256))]
/// # pub fn sums<const N: usize>(n: u32) {}
/// let call = sums::<128>(3); // error: the kernel `sums` is not compiled for these constants
/// ```
///
/// In the attribute and in the body the parameters are constants like any other. So is the block's size above. The body is
/// compiled for each instance. A kernel is not generic over types: put the code in a generic function with
/// `#[inline(always)]`, and call it from one kernel for each type.
///
/// # Shared memory
///
/// `shared_array![T; N]` in the body is a `*mut T` to `N` elements that the threads of a block-task share. It
/// may not stand in a function inside the body, nor in another macro's arguments. Each array has its own
/// memory, aligned to 16 bytes at most, and no initial contents. `T` and `N` name items that are visible
/// outside of the kernel. If the body declares another item of such a name, that is an error.
///
/// An array under a `#[cfg]` takes space only if the condition holds. Host and device are compiled
/// separately, with features of their own. A launch on the GPU fails if the device has an array that the host
/// does not know.
///
/// `shared_slice![T; n]` is a `SliceMut<T>` of `n` elements, where `n` is known only at the launch: CUDA's dynamic shared
/// memory. The launch function computes `n`, an integer of any type, from the kernel's parameters, so that no launch
/// can pass another size than the kernel expects:
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// Reverses each run of `run` elements, at most 1024 of them.
/// #[preemptible]
/// pub fn reverse(run: u32, x: &[f32], reversed: SliceMut<f32>) {
///     let tile = shared_slice![f32; run];
///     let (t, start) = (thread::thread_idx_x() as usize, (thread::block_idx_x() * run) as usize);
///     if t < tile.len() {
///         // SAFETY: each thread writes its own element.
///         unsafe { tile.write(t, x[start + t]) };
///     }
///     thread::sync_threads();
///     if t < tile.len() {
///         // SAFETY: the tile is not written any more, and each thread writes its own element.
///         unsafe { reversed.write(start + t, tile.read(tile.len() - 1 - t)) };
///     }
/// }
/// ```
///
/// `n` is an expression of constants, of parameters that are passed by value, and of the lengths of slices, `x.len()`. It
/// may not name variables of the body, nor thread indices. If it panics, the launch function does. A launch fails with
/// an error if `n` is negative, or if a block of the device does not have so much shared memory. The size decides how
/// many blocks an SM holds.
///
/// # Returns and barriers
///
/// A `return` ends the thread's part of the block-task. If a barrier or a warp operation follows, or lies in
/// the same loop, the other threads would wait for ever. So this is an error:
///
/// ```compile_fail
/// # use preempt_device::prelude::*;
/// #[preemptible]
/// fn reverse(n: u32, out: SliceMut<u32>) {
///     if thread::index_1d() >= n {
///         return; // error: threads that return here never reach `sync_threads` below
///     }
///     thread::sync_threads();
/// }
/// ```
///
/// Make the work conditional instead, and keep the barrier outside. That also holds for a `return` that all
/// threads of a block take together, because the macro cannot know this.
///
/// The macro looks into functions and closures in the body, and into the arguments of macros. It does not see
/// a helper function elsewhere that waits for other threads, nor a macro that hides a `return` or a barrier.
/// On the GPU, a thread that returns ahead of such a barrier hangs the block. The CPU device reports it, so
/// run a kernel there first.
///
/// # Yield points
///
/// A kernel gives SMs back between two block-tasks. A kernel with long block-tasks, of a millisecond say, can
/// do so inside of them as well:
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// `x[i] = cos(cos(.. x0[i]))`
/// #[preemptible(block = 256)]
/// pub fn settle(rounds: u32, x0: &[f32], x: SliceMut<f32>) {
///     let i = thread::index_1d() as usize;
///     if i < x.len() {
///         let mut settled = x0[i];
///         for _ in 0..rounds {
///             yield_point!();
///             settled = GpuFloat::cos(settled);
///         }
///         // SAFETY: each thread writes its own element.
///         unsafe { x.write(i, settled) }
///     }
/// }
/// ```
///
/// If the SM was taken from the kernel, `yield_point!()` returns from it. If any thread of a block-task does
/// so, the block-task is *requeued*. It counts as not done, and all its threads run again later, from its
/// start, perhaps on another SM. That includes threads that had reached their end. After two requeues the
/// block-task runs to its end, so a kernel that is preempted again and again still ends.
///
/// So running a block-task again has to leave the same result as running it once. Each of its threads may have
/// stopped at any of its yield points, or reached its end. That holds if the kernel writes only what it does
/// not read:
///
/// | instead of | write |
/// | --- | --- |
/// | `x += 1` on global memory | read one buffer and write another |
/// | an atomic that counts or appends | each thread's result to its own element, and another kernel that sums them |
/// | `x = f(x)` in place | read one buffer and write another; or, in a body with barriers, write `x` only behind the last yield point that the block reaches |
///
/// With barriers in the body, a yield point stops all threads of a block or none (below). So behind the last
/// one no thread runs again. Without barriers each thread stops by itself. A thread at its end may have overwritten `x`
/// when another thread requeues the block-task, and would then read what it wrote.
///
/// ## Markers
///
/// Most kernels that do such a thing do it at their end. There the macro plants a *marker* in front of it. A thread that
/// comes to a marker tells its block, and from then on the block-task runs to its end: yield points stop none of its threads
/// any more. (A pool that revokes a task does all of it again with other memory, so there its blocks leave
/// behind a marker, too. So hold no lock at a yield point that stands behind one.) If another thread has stopped at a yield
/// point before, the thread returns at the marker instead. So the block-task either runs again, and no thread has come past a
/// marker, or it does not.
///
/// ```
/// use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
/// use preempt_device::prelude::*;
///
/// /// Counts the ends of orbits.
/// #[preemptible(block = 256)]
/// pub fn count(rounds: u32, x0: &[f32], counts: SliceMut<u32>) {
///     let mut x = x0[thread::index_1d() as usize];
///     for _ in 0..rounds {
///         yield_point!();
///         x = GpuFloat::cos(x);
///     }
///     let bin = (x * 16.0) as usize % 16;
///     // A marker stands here.
///     // SAFETY: there are 16 counters, which all threads access atomically.
///     unsafe { AtomicU32::from_ptr(counts.as_mut_ptr().add(bin)) }.fetch_add(1, Relaxed);
/// }
/// ```
///
/// The marker stands ahead of the innermost statement of the kernel's own body that does it: of the statement that declares
/// a closure, if the closure does it, and of the whole `match` if an arm without braces does it. Put braces around what
/// should be preemptible for longer. The block-task is preemptible until its *first* thread has passed a marker. In a loop
/// with a yield point, a marker is passed once and holds for all later rounds. The option `explain` says where the first
/// marker is. With `idempotent`, there are none.
///
/// ## What the macro proves
///
/// The macro proves it where it can see it, and a kernel like those here needs no word for it. It refuses others,
/// at the token in question. `idempotent` then is a promise of the author's, which nothing checks: as with a data
/// race, a wrong one gives wrong results, and only when the kernel is preempted. What is not proved:
///
/// | in the body | because | and |
/// | --- | --- | --- |
/// | a buffer that is read and written, an atomic | the block-task finds what it has written | a marker is planted, if there is a yield point ahead of it |
/// | written memory that is lent (`&mut *p`), stored in a struct, or passed on | where it is written is not seen | as above; or write `read` and `write`, or `*` on the pointer, in the body |
/// | a function or method from elsewhere, an operator of a type of your own | its code is not seen | write a function inside the body; numbers, `let n: u32 = p.n;` |
/// | a shared array that is read before it is written, or written only under a condition or in a loop | a dropped run has left values there | write it first |
/// | `sm_id`, `activemask`, clocks | they are something else next time | use parameters and indices |
/// | a `static`, a macro other than `assert!`, `panic!` and their like, a `#[cfg]` | what stands there is not seen | write it out; use constants that are numbers or arrays of numbers |
///
/// ```compile_fail
/// # use preempt_device::prelude::*;
/// #[preemptible]
/// fn halve(x: SliceMut<f32>) {
///     let i = thread::index_1d() as usize;
///     unsafe { x.write(i, x.read(i) / 2.0) } // error: this may overwrite elements of `x` that the block-task reads
///     yield_point!();
/// }
/// ```
///
/// Methods of numbers, slices and iterators are assumed to be those of the library.
///
/// ## Where yield points stand
///
/// A yield point returns from the kernel, so it stands in the kernel's own body: not in a closure, and not in
/// a helper function. A helper function can do a part of the work between two yield points. A yield point
/// costs a few instructions, and each block loads the signal about once in two microseconds. More than one
/// yield point in that time gains nothing. In the plain entry it costs nothing.
///
/// In a body that waits for other threads (barriers, shuffles, votes), the block decides together. A yield
/// point costs a barrier there, unless it stands right behind a `sync_threads()`: those two are one barrier.
/// All threads of a block have to reach it. A signal that is loaded at one yield point is tested at the next
/// one. So a block-task needs at least two, and stops at the second one after the signal. The best place is
/// ahead of a long computation without loads, which hides the load of the signal. The worst place is the end
/// of a loop. The compiler would defer computations for the next round past the yield point, and keep all
/// their inputs in registers until then.
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// Sums each run of 256 elements of the columns.
/// #[preemptible(block = 256)]
/// pub fn sums(columns: u32, x: &[u32], sums: SliceMut<u32>) {
///     let (partial, t) = (shared_array![u32; 256], thread::thread_idx_x() as usize);
///     for column in 0..columns * thread::grid_dim_x() {
///         thread::sync_threads();
///         yield_point!();
///         let at = column as usize * 256 + t;
///         // SAFETY: one element for each thread, and barriers around what others read.
///         unsafe {
///             partial.add(t).write(if at < x.len() { x[at] } else { 0 });
///             thread::sync_threads();
///             if t == 0 {
///                 sums.write(column as usize, (0..256).map(|i| *partial.add(i)).sum());
///             }
///         }
///     }
/// }
/// ```
///
/// So whether a yield point is reached may depend on parameters, on elements of slices, on constants, and on
/// the block's indices and extents. It may not depend on the thread's indices, on memory that threads write,
/// or on results of unknown functions. Methods and operators of your own types are unknown, too:
///
/// | of a parameter `p` with `#[derive(KernelArg)]` | |
/// | --- | --- |
/// | `0..p.steps`, `p.steps as usize`, `let steps: u32 = p.steps;` | a number, and the same in all threads |
/// | `p.len()`, `p + 1`, `i < p.steps` | perhaps code of yours: take the number first, as above |
///
/// Constants are assumed to be numbers or arrays of numbers, and methods of numbers, ranges and slices to be
/// those of the library. The macro refuses a yield point if it cannot see that all threads reach it:
///
/// ```compile_fail
/// # use preempt_device::prelude::*;
/// # #[preemptible]
/// # fn k(out: SliceMut<u32>) {
/// while thread::index_1d() > 3 {
///     yield_point!(); // error: this may differ between threads
/// }
/// thread::sync_threads();
/// # }
/// ```
///
/// # Checkpoints
///
/// A block-task that stops at a yield point loses what it has done. With a checkpoint it is *left* there: the state of its
/// threads and shared memory are saved, and another block goes on with it. So it need not be able to run again, and it can
/// be left as often as needed. A kernel has one checkpoint, around its longest loop:
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// Adds the sums of the columns to `sums`, a block for each 256 rows.
/// #[preemptible(block = 256)]
/// pub fn add(rows: u32, columns: u32, x: &[f32], sums: SliceMut<f32>) {
///     let i = thread::index_1d();
///     checkpoint!(sum: f32 = 0.0 => for column in 0..columns {
///         if i < rows {
///             sum += x[(column * rows + i) as usize];
///         }
///     });
///     if i < rows {
///         // SAFETY: each thread has its own element.
///         unsafe { sums.write(i as usize, sums.read(i as usize) + sum) }
///     }
/// }
/// ```
///
/// `checkpoint!(state: T = init => for i in a..b { .. })`, or `while cond { .. }`, is a statement of the body. Each round starts
/// with a checkpoint. Behind the loop `state` has its last value.
///
/// | part | what it may do |
/// | --- | --- |
/// | `T` | what kernels take by value, or a tuple of up to six such: numbers, arrays, `#[derive(KernelArg)]`; no references, and 64 KiB at most |
/// | `init`, `a`, `b` | what the loop may, and run once, before the first round: a block-task that goes on has their values |
/// | the loop | change `state`, memory and shared memory, as atomic operations and functions from elsewhere do; `break`, `continue`. Another variable that it changes does not compile |
/// | how many rounds there are | is the same in all threads of a block, as [ahead of a yield point](#where-yield-points-stand); so is where they `break` |
/// | ahead of the checkpoint | runs again when a block-task goes on: it writes shared memory alone, and reads no buffer that the kernel writes. The macro proves that [as above](#what-the-macro-proves); `idempotent` is the author's word for it |
/// | behind it | anything |
///
/// All threads of a block leave together, so a round costs a barrier, as a yield point in a body with barriers does; a
/// `sync_threads()` that ends the loop's body and the next checkpoint are one barrier. A variable that the compiler does not see
/// change, in a `Cell` or behind a pointer, is not saved. The kernel has no yield points. A block goes on for a round at least
/// before it leaves. It does not leave ahead of the loop: what takes long there, as a tile that is read into shared memory, is
/// better done in the first rounds, and is saved then and not done again.
///
/// The device keeps the block-tasks that were left in the launch's *save area*. A block that finds no slot there goes on, and
/// tries again at each round: it leaves once a slot is free, unless its block-task has ended before. The CPU device has a slot
/// for as many block-tasks as it has blocks. On a GPU the area is a part of the memory that the scheduler's builder reserves,
/// `checkpoint_memory`, and a slot takes the threads of a block's warps times the size of `T`, rounded up to 16 bytes, plus 16,
/// and the block's shared memory. A block-task has a slot until another block goes on with it. A launch of a kernel whose slot is larger than the area is refused.
#[proc_macro_attribute]
pub fn preemptible(options: TokenStream, item: TokenStream) -> TokenStream {
    expand_kernel(options.into(), item.into()).into()
}

/// Replaces `#[kernel]` of rust-cuda's `cuda_std` where the stock compiler compiles the kernels.
///
/// On the GPU the function is an entry of its name, with the parameters of rust-cuda: pointer and length for
/// a slice, one for other types. `cust` launches it as before. `shared_array!`s are dynamic shared memory
/// here, whose bytes a launch has to pass. On the host it stays a function.
///
/// With `#[preemptible]` above or below it, that entry stays, and a preemptible one with the name
/// `name__preemptible` is added. On the host, the name is then that of the launch function.
///
/// ```
/// extern crate preempt_device as cuda_std;
/// use cuda_std::prelude::*;
///
/// #[kernel]
/// #[preemptible]
/// pub unsafe fn add(a: &[f32], b: &[f32], c: *mut f32) {
///     let i = thread::index_1d() as usize;
///     if i < a.len() {
///         // SAFETY: each thread writes its own element, and the caller of the launch has allocated them.
///         unsafe { *c.add(i) = a[i] + b[i] }
///     }
/// }
/// # fn main() {}
/// ```
///
/// It accepts the options of `cuda_std`'s attribute, and ignores them. `crate = path` is the path of
/// `preempt_device`, as for `#[preemptible]`, which knows this attribute by its name, under any
/// path.
#[proc_macro_attribute]
pub fn kernel(options: TokenStream, item: TokenStream) -> TokenStream {
    kernel_attribute::kernel(options.into(), item.into()).into()
}

/// Replaces `#[gpu_only]` of rust-cuda's `cuda_std`, and leaves the function as it is, because kernels run on
/// the host, too.
#[proc_macro_attribute]
pub fn gpu_only(_options: TokenStream, item: TokenStream) -> TokenStream {
    item
}

/// Lets a struct be passed to kernels by value.
///
/// Host and device code come from different compilers, so the struct is `#[repr(C)]` or
/// `#[repr(transparent)]`, and every field is `KernelArg`. It is `Copy` and not generic.
///
/// ```
/// use preempt_device::prelude::*;
///
/// #[derive(Clone, Copy, KernelArg)]
/// #[repr(C)]
/// pub struct LinearMap {
///     pub slope: f32,
///     pub offset: f32,
/// }
///
/// #[preemptible(block = 256)]
/// pub fn apply(map: LinearMap, x: &[f32], y: SliceMut<f32>) {
///     let i = thread::index_1d() as usize;
///     if i < y.len() {
///         // SAFETY: each thread writes its own element.
///         unsafe { y.write(i, x[i].mul_add(map.slope, map.offset)) }
///     }
/// }
/// ```
///
/// `#[kernel_arg(crate = path)]` is the path of `preempt_device`, as for [`#[preemptible]`](macro@preemptible).
#[proc_macro_derive(KernelArg, attributes(kernel_arg))]
pub fn derive_kernel_arg(item: TokenStream) -> TokenStream {
    expand_derive(item.into()).into()
}

fn expand_derive(item: TokenStream2) -> TokenStream2 {
    derive::kernel_arg(item).unwrap_or_else(syn::Error::into_compile_error)
}
