//! Kernels of many shapes, expanded and run through their CPU entries.

use preempt_device::host::{Args, Dim3};
use preempt_device::prelude::*;

use emulator::{Buffer, run};

mod emulator;
mod yields;

/// `out[i] = a[i] + b[i]`
#[preemptible(block = 4)]
fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, a[i] + b[i]) }
    }
}

#[test]
fn slices() {
    let a = Buffer::new([1.0, 2.0, 3.0, 4.0, 5.0]);
    let b = Buffer::new([10.0, 20.0, 30.0, 40.0, 50.0]);
    let mut out = Buffer::new([0.0; 5]);
    run(add(&a, &b, &mut out).grid(2));
    assert_eq!(out.to_vec(), [11.0, 22.0, 33.0, 44.0, 55.0]);
}

#[test]
fn slices_without_elements() {
    let (a, mut out) = (Buffer::new([]), Buffer::new([]));
    let call = add(&a, &a, &mut out).grid(2);
    for position in [0, 2, 4] {
        // SAFETY: the launch pushed an address there.
        let pointer = unsafe { call.args().pointer::<f32>(position) };
        assert!(!pointer.is_null() && pointer.is_aligned());
    }
    run(call);
}

#[test]
fn the_description_says_what_the_attribute_says() {
    const LOOPS: u32 = 8;
    #[preemptible(block = (8, 2 * 4), amortize = 2 * LOOPS)]
    fn described(_out: *mut u32) {}

    let mut out = Buffer::new([0]);
    let kernel = described(&mut out).kernel();
    assert_eq!((kernel.name, kernel.plain), ("described", "described__plain"));
    assert_eq!(kernel.module, module_path!());
    assert_eq!(kernel.block, Some(Dim3::new(8, 8, 1)));
    assert_eq!(kernel.amortize, Some(16));
    assert_eq!(kernel.shared_bytes, 0);
}

#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
struct LinearMap {
    slope: Slope,
    offset: f64,
    steps: [u16; 3],
}

#[derive(Clone, Copy, KernelArg)]
#[repr(transparent)]
struct Slope(f32);

#[preemptible(block = 2)]
fn line(map: LinearMap, mut at: u8, out: *mut f64) {
    at += map.steps[2] as u8;
    // SAFETY: each thread writes its own element, and there are two.
    unsafe {
        *out.add(thread::index_1d() as usize) = f64::from(map.slope.0) * f64::from(at) + map.offset
    }
}

#[test]
fn structs_and_scalars() {
    let mut out = Buffer::new([0.0; 2]);
    run(line(LinearMap { slope: Slope(0.5), offset: 1.25, steps: [0, 0, 4] }, 6, &mut out).grid(1));
    assert_eq!(out.to_vec(), [6.25; 2]);
}

#[preemptible]
fn numbers_2d(width: u32, out: *mut u32) {
    let at = thread::index_2d();
    // SAFETY: each thread writes its own element.
    unsafe { *out.add((at.y * width + at.x) as usize) = thread::index() }
}

#[test]
fn indices_in_two_dimensions() {
    let mut out = Buffer::new([0; 16]);
    run(numbers_2d(4, &mut out).grid((2, 2)).block((2, 2)));
    assert_eq!(out.to_vec(), [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
}

#[preemptible(block = (2, 1, 3))]
fn count_3d(out: SliceMut<u32>) {
    let at = thread::index_3d();
    assert!(at.x < 4 && at.y < 3 && at.z < 3);
    let number = (at.z * 3 + at.y) * 4 + at.x;
    // SAFETY: threads run one after the other.
    unsafe { out.write(number as usize, out.read(number as usize) + 1) }
}

#[test]
fn indices_in_three_dimensions() {
    let mut out = Buffer::new([0; 36]);
    run(count_3d(&mut out).grid((2, 3)));
    assert_eq!(out.to_vec(), [1; 36]);
}

const TILE: usize = 3;

#[preemptible(block = 1)]
fn shared(out: SliceMut<u64>) {
    let bytes = shared_array![u8; TILE];
    let mut starts = [0; 4];
    for round in 0..2 {
        let words = preempt_device::shared_array!(f64; TILE * 2);
        let again = (|| shared_array![LinearMap; 1])();
        starts = [bytes as usize, words as usize, again as usize, round];
    }
    let last = shared_array! { [u16; 4]; 5 };
    // SAFETY: one thread, and five elements.
    unsafe {
        for (index, start) in starts.into_iter().take(3).enumerate() {
            out.write(index, (start - bytes as usize) as u64);
        }
        out.write(3, (last as usize - bytes as usize) as u64);
        for index in 0..TILE {
            bytes.add(index).write(7);
        }
        last.add(4).write([1; 4]);
        out.write(4, bytes.add(TILE - 1).read().into());
    }
}

#[test]
fn shared_arrays_are_aligned_and_apart() {
    let mut out = Buffer::new([9; 5]);
    let call = shared(&mut out);
    assert_eq!(call.kernel().shared_bytes, 8 + 48 + 24 + 40);
    run(call.grid(1));
    assert_eq!(out.to_vec(), [0, 8, 8 + 48, 8 + 48 + 24, 7]);
}

/// Two elements for each of a parameter's.
#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
struct Shape {
    width: u8,
}

/// Parameters are looked up where the launch is, whatever the body makes of their names.
#[preemptible(block = 1)]
fn sliced(mut n: u32, shape: Shape, x: &[u32], _p: *const u8, out: SliceMut<u64>) {
    n += 100;
    let array = shared_array![u8; TILE];
    let words = shared_slice![u64; n as usize + x.len()];
    #[cfg(any())]
    let absent = shared_slice![Missing; 1];
    let x = (|| preempt_device::shared_slice!(u16; TILE * usize::from(shape.width) + out.len()))();
    let none = shared_slice! { f32; 0i8 };
    // SAFETY: one thread.
    unsafe {
        let place = |address: usize| (address - array as usize) as u64;
        out.write(0, place(words.as_mut_ptr() as usize));
        out.write(1, words.len() as u64);
        out.write(2, place(x.as_mut_ptr() as usize));
        out.write(3, x.len() as u64);
        out.write(4, place(none.as_mut_ptr() as usize));
        out.write(5, u64::from(n) + none.len() as u64);
        words.write(words.len() - 1, u64::MAX);
        x.write(x.len() - 1, u16::MAX);
    }
}

#[test]
fn shared_slices_are_computed_from_the_arguments() {
    let (mut out, x, bytes) = (Buffer::new([9; 6]), Buffer::new([0; 3]), Buffer::new([0u8; 1]));
    let call = sliced(4, Shape { width: 2 }, &x, &bytes, &mut out);
    let start = TILE.next_multiple_of(8) as u64;
    let len = 2 * TILE as u64 + 6;
    let end = (start + 7 * 8 + 2 * len).next_multiple_of(4);
    assert_eq!((call.kernel().shared_bytes, call.shared_bytes()), (TILE as u32, end));
    run(call.grid(1));
    assert_eq!(out.to_vec(), [start, 7, start + 7 * 8, len, end, 104]);
}

mod generic {
    use super::*;

    pub const WIDE: usize = 24;

    /// Host code is generic over the constants, and each instance has its own description.
    #[preemptible(block = (N as u32, 2), instances((8, 'a'), (WIDE, 'b')), amortize = N as u32)]
    pub fn padded<const N: usize, const C: char>(factor: u8, x: [u8; N], out: SliceMut<u32>) {
        let array = shared_array![u8; N / 2 + 1];
        let slice = shared_slice![u32; N * usize::from(factor)];
        let first = thread::first();
        if first {
            // SAFETY: one thread.
            unsafe {
                out.write(0, x.iter().map(|&x| u32::from(x)).sum::<u32>() + C as u32);
                out.write(1, slice.len() as u32);
                out.write(2, (slice.as_mut_ptr() as usize - array as usize) as u32);
            }
        }
    }
}

#[test]
fn a_generic_kernel_has_the_instances_that_it_lists() {
    let mut out = Buffer::new([0; 3]);
    let call = generic::padded::<8, 'a'>(3, [2; 8], &mut out);
    let kernel = call.kernel();
    assert_eq!((kernel.name, kernel.entry), ("padded::<8, 'a'>", "padded__8__a_"));
    assert_eq!((kernel.plain, kernel.shared_bytes), ("padded__8__a___plain", 5));
    assert_eq!((kernel.block, kernel.amortize), (Some(Dim3::new(8, 2, 1)), Some(8)));
    assert_eq!(call.shared_bytes(), 8 + 4 * 24);
    run(call.grid(1));
    assert_eq!(out.to_vec(), [16 + 'a' as u32, 24, 8]);

    let call = generic::padded::<24, 'b'>(1, [1; 24], &mut out);
    assert_eq!((call.kernel().entry, call.shared_bytes()), ("padded__WIDE__b_", 16 + 4 * 24));
    assert_eq!(call.kernel().block, Some(Dim3::new(24, 2, 1)));
    run(call.grid(1));
    assert_eq!(out.to_vec(), [24 + 'b' as u32, 24, 16]);
}

/// Arrays under a false condition take no space, and their types need not exist.
#[preemptible(block = 1)]
fn absent_arrays(out: SliceMut<u64>) {
    #[cfg(any())]
    let absent = shared_array![Missing; 1];
    #[cfg(not(any()))]
    let there = shared_array![u32; 1];
    #[cfg(any())]
    {
        for _ in 0..2 {
            let absent = shared_array![Missing; 1];
        }
    }
    #[cfg(not(any()))]
    {
        #[cfg_attr(not(any()), doc = "Also without a `cfg`.", cfg(any()))]
        shared_array![Missing; 1];
        #[cfg_attr(any(), cfg(any()))]
        shared_array![u32; 2];
    }
    let also_there = match 3 {
        #[cfg(any())]
        3 => shared_array![Missing; 1],
        // Outside of the scope under the condition.
        _ => shared_array![u32; 4],
    };
    // An item of another block.
    {
        const TILE: usize = 100;
        assert_eq!(TILE, 100);
    }
    let last = shared_array![u32; TILE];
    // SAFETY: one thread.
    unsafe {
        out.write(0, (also_there as usize - there as usize) as u64);
        out.write(1, (last as usize - there as usize) as u64);
    }
}

#[test]
fn arrays_under_a_false_condition_take_no_space() {
    let mut out = Buffer::new([9; 2]);
    let call = absent_arrays(&mut out);
    assert_eq!(call.kernel().shared_bytes, 4 + 8 + 16 + 12);
    run(call.grid(1));
    assert_eq!(out.to_vec(), [4 + 8, 4 + 8 + 16]);
}

#[preemptible(block = 4)]
fn early(n: u32, out: SliceMut<u32>) {
    let i = thread::index_1d();
    if i >= n {
        return;
    }
    // SAFETY: each thread writes its own element.
    unsafe { out.write(i as usize, i) }
}

#[test]
fn a_return_ends_the_thread_of_the_block_task() {
    let mut out = Buffer::new([9; 6]);
    run(early(3, &mut out).grid(2));
    assert_eq!(out.to_vec(), [0, 1, 2, 9, 9, 9]);
}

/// # Safety
///
/// `at` is an index of `out`.
#[preemptible(block = 1)]
unsafe fn unchecked(at: u64, out: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe { *out.add(at as usize) = 5 }
}

#[test]
fn unsafe_kernels() {
    let mut out = Buffer::new([0; 2]);
    // SAFETY: 1 is an index of `out`.
    run(unsafe { unchecked(1, &mut out) }.grid(1));
    assert_eq!(out.to_vec(), [0, 5]);
}

mod nested {
    use preempt_device::prelude::*;

    type Count = u32;

    fn helper(of: Count) -> Count {
        of + thread::block_idx_x()
    }

    pub(crate) mod deeper {
        use preempt_device as device;

        #[device::preemptible(block = 1, crate = device)]
        pub(crate) fn blocks(out: device::kernel::SliceMut<super::Count>) {
            let block = super::super::nested::helper(0);
            // SAFETY: one thread in a block.
            unsafe { out.write(block as usize, self::super::helper(block)) }
        }
    }
}

#[test]
fn kernels_in_modules_see_what_is_around_them() {
    let mut out = Buffer::new([9; 3]);
    let call = nested::deeper::blocks(&mut out).grid(3);
    assert_eq!(call.kernel().module, concat!(module_path!(), "::nested::deeper"));
    run(call);
    assert_eq!(out.to_vec(), [0, 2, 4]);
}

/// Names that the expansion uses as well.
#[preemptible(block = 1)]
fn names(args: u32, block: u32, task: &[u32], ptr_2: *mut u32, r#type: u32, cohort: u32) {
    let tasks = args + block + task[0] + r#type + cohort;
    // SAFETY: one thread.
    unsafe { *ptr_2 = tasks }
}

/// As above.
#[preemptible(block = 1, idempotent)]
fn yielding_names(yields: u32, __preempt_yields: *mut u32) {
    yield_point!();
    // SAFETY: one thread.
    unsafe { *__preempt_yields = yields }
}

#[test]
fn parameters_may_have_any_name() {
    let (task, mut out) = (Buffer::new([3]), Buffer::new([0]));
    run(names(1, 2, &task, &mut out, 4, 5).grid(1));
    assert_eq!(out.to_vec(), [15]);
    run(yielding_names(16, &mut out).grid(1));
    assert_eq!(out.to_vec(), [16]);
}

/// Its types do not exist.
#[preemptible]
#[cfg(any())]
fn absent(missing: Missing) {
    let array = shared_array![Missing; 1];
}

/// Attributes of the function, wherever they are written, apply to its whole expansion.
#[deny(unused_variables)]
#[preemptible(block = 1)]
#[doc = "More words."]
fn attributes(#[allow(unused_variables)] unused: u32) {
    #![allow(unused_mut)]
    let mut _also_unused = 1;
}

/// A kernel in a macro gets its types in invisible delimiters.
macro_rules! fill_kernels {
    ($($name:ident: $ty:ty, $input:ty;)*) => {
        $(
            #[preemptible(block = 1)]
            fn $name(value: $ty, input: $input, out: SliceMut<$ty>) {
                let tile = shared_array![$ty; 1];
                // SAFETY: one thread.
                unsafe {
                    *tile = value + input[0];
                    out.write(0, *tile)
                }
            }
        )*
    };
}
fill_kernels! {
    fill_f32: f32, &[f32];
    fill_i64: i64, &[i64];
}

#[test]
fn kernels_made_by_macros() {
    let (one, mut out) = (Buffer::new([1.0]), Buffer::new([0.0]));
    run(fill_f32(0.5, &one, &mut out).grid(1));
    assert_eq!(out.to_vec(), [1.5]);
    let (one, mut out) = (Buffer::new([1]), Buffer::new([0]));
    run(fill_i64(-3, &one, &mut out).grid(1));
    assert_eq!(out.to_vec(), [-2]);
}

#[preemptible(block = 1)]
fn nothing() {}

#[test]
fn a_kernel_without_parameters() {
    run(attributes(1).grid(1));
    let call = nothing();
    assert_eq!(call.args().size(), Args::default().size());
    run(call.grid(1));
}

struct Namespace;

impl Namespace {
    #[preemptible(block = 1)]
    fn associated(only: &[u32], out: SliceMut<u32>) {
        // SAFETY: one thread.
        unsafe { out.write(0, only[0]) }
    }
}

#[test]
fn a_kernel_as_an_associated_function() {
    let (only, mut out) = (Buffer::new([7]), Buffer::new([0]));
    run(Namespace::associated(&only, &mut out).grid(1));
    assert_eq!(out.to_vec(), [7]);
}
