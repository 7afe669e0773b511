//! The result of each test kernel, against plain host code: on the CPU device, or on the first GPU with
//! `PREEMPT_TEST_DEVICE=cuda`.

use preempt::{Call, CpuLayout, NoGrid, Preemption, Scheduler, Stream};
use preempt_test_kernels::{self as kernels, Affine, Weights};
use preempt_test_kit::{Random, on_gpu};

fn stream() -> (Scheduler, Stream) {
    let scheduler = preempt_test_kit::scheduler(CpuLayout::sms(3).blocks_per_sm(2));
    let stream = scheduler.stream(0);
    (scheduler, stream)
}

fn run(stream: &Stream, call: Call<'static>) {
    let report = stream.launch(call).expect("accepted").wait().expect("runs");
    assert!(report.tasks > 0);
}

/// The contents of outputs before a kernel runs.
const POISON: f32 = f32::NAN;

#[test]
fn vector_add() {
    let (scheduler, stream) = stream();
    let mut random = Random(1);
    let mut numbers = || (0..1000).map(|_| random.unit()).collect::<Vec<f32>>();
    let (a, b) = (numbers(), numbers());
    let mut out = scheduler.buffer(&[POISON; 1000]).expect("memory");
    let (on_a, on_b) =
        (scheduler.buffer(&a).expect("memory"), scheduler.buffer(&b).expect("memory"));
    run(&stream, kernels::vector_add(&on_a, &on_b, &mut out).grid(5));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert!((0..1000).all(|i| found[i] == a[i] + b[i]));
}

#[test]
fn each_launch_has_the_shared_memory_that_its_arguments_ask_for() {
    let (scheduler, stream) = stream();
    let limit = scheduler.device().properties().shared_per_block as usize / 4;
    // The largest one takes more than a block has by default.
    for (len, blocks) in [(100, 7), (1, 3), (20_000, 4), (33, 50), (0, 2), (100, 7)] {
        assert!(len < limit);
        let x: Vec<u32> = (0..(len * blocks).max(1) as u32).collect();
        let input = scheduler.buffer(&x).expect("memory");
        let mut out = scheduler.zeroed(x.len()).expect("memory");
        let call = kernels::reversed_runs(len as u32, &input, &mut out).block(128).grid(blocks);
        assert_eq!(call.shared_bytes(), 4 * len as u64);
        let features = scheduler.features(&call).expect("a launch that is accepted");
        assert_eq!(features.shared_bytes, 4 * len as u32);
        run(&stream, call.clone());
        run(&stream, call.preemption(Preemption::Plain));
        let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
        let expected: Vec<u32> = match len {
            0 => vec![0],
            len => x.chunks(len).flat_map(|run| run.iter().rev().copied()).collect(),
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn shared_slices_are_apart() {
    let (scheduler, stream) = stream();
    for (width, len) in [(5, 9), (0, 3), (70, 0), (1, 1)] {
        let x: Vec<u8> = (0..len).map(|i| 200 + i as u8).collect();
        let input = scheduler.buffer(&x).expect("memory");
        let mut out = scheduler.zeroed::<u64>(6).expect("memory");
        let call = kernels::apart(width, &input, &mut out).grid(6);
        // Three elements of two bytes, and then multiples of eight.
        assert_eq!(call.shared_bytes(), 8 + 16 * width as u64 + len as u64);
        run(&stream, call);
        let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
        let sum: u64 = x.iter().map(|&x| u64::from(x)).sum();
        assert_eq!(found, [sum + 4 * width as u64 + 3 * 65535; 6]);
    }
}

#[test]
fn each_instance_of_a_generic_kernel_runs() {
    let (scheduler, stream) = stream();
    let x: Vec<f32> = (0..1000).map(|i| (i % 17) as f32).collect();
    let input = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.buffer(&[POISON; 1000]).expect("memory");
    macro_rules! filter {
        ($taps:literal) => {
            let weights = std::array::from_fn(|tap| (tap + 1) as f32);
            let call = kernels::filtered::<$taps>(weights, &input, &mut out).threads(1000);
            assert_eq!(call.kernel().name, concat!("filtered::<", $taps, ">"));
            assert_eq!(call.shared_bytes(), 4 * 3 * $taps);
            run(&stream, call.clone());
            run(&stream, call.preemption(Preemption::Plain));
            let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
            for (i, found) in found.into_iter().enumerate() {
                let terms = x[i..].iter().zip(weights).map(|(x, weight)| x * weight);
                assert_eq!(found, terms.sum::<f32>(), "{i}");
            }
        };
    }
    filter!(8);
    filter!(16);

    let numbers = scheduler.buffer(&[1, 2, -3]).expect("memory");
    let mut scaled = scheduler.buffer(&[100, 100, 100]).expect("memory");
    run(&stream, kernels::scaled::<3, true>(&numbers, &mut scaled).block(32).grid(1));
    let found = stream.download(&scaled).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [103, 106, 91]);
    run(&stream, kernels::scaled::<-2, false>(&numbers, &mut scaled).block(32).grid(1));
    let found = stream.download(&scaled).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [-2, -4, 6]);
}

#[test]
fn as_many_blocks_as_cover_the_threads() {
    let (scheduler, stream) = stream();
    let mut counts = scheduler.zeroed(100).expect("memory");
    let mut writes = scheduler.zeroed(100 * 32).expect("memory");
    let mut tasks = |shape: fn(Call<'static, NoGrid>) -> Call<'static>| {
        let call = shape(kernels::count_1d(&mut counts, &mut writes));
        let dim = call.grid_dim();
        let report = stream.launch(call).expect("accepted").wait().expect("runs");
        assert_eq!(dim.count(), u128::from(report.tasks));
        report.tasks
    };
    assert_eq!(tasks(|call| call.threads(1).block(32)), 1);
    assert_eq!(tasks(|call| call.threads(32).block(32)), 1);
    assert_eq!(tasks(|call| call.threads(33).block(32)), 2);
    assert_eq!(tasks(|call| call.block(32).threads(33usize)), 2);
    assert_eq!(tasks(|call| call.block(16).threads(33u32).block(32)), 2);
    assert_eq!(tasks(|call| call.grid(50).block(8).threads(800)), 100);
    // In x alone, unless there are more dimensions.
    assert_eq!(tasks(|call| call.threads(33).block((8, 4))), 5);
    assert_eq!(tasks(|call| call.threads((33, 5usize)).block((8, 4))), 10);
    assert_eq!(tasks(|call| call.threads((3, 3, 3)).block((2, 2, 2))), 8);
    // The block of a kernel that fixes it.
    let input = scheduler.buffer(&[1; 300]).expect("memory");
    let mut out = scheduler.buffer(&[0; 300]).expect("memory");
    let call = kernels::guard_sync_guard(&input, &mut out).threads(out.len());
    assert_eq!(call.grid_dim().x, 3);
    run(&stream, call);
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [1; 300]);
}

#[test]
fn a_pointer_to_an_empty_buffer_is_null() {
    preempt_test_kit::check_optional_buffers(&stream().0);
}

#[test]
fn tiled_mm() {
    let (scheduler, stream) = stream();
    let mut random = Random(2);
    for n in [16, 33, 50] {
        let mut numbers = || (0..n * n).map(|_| random.unit()).collect::<Vec<f32>>();
        let (a, b) = (numbers(), numbers());
        let mut c = scheduler.buffer(&vec![POISON; n * n]).expect("memory");
        let on_a = scheduler.buffer(&a).expect("memory");
        let on_b = scheduler.buffer(&b).expect("memory");
        let tiles = n.div_ceil(16) as u32;
        run(&stream, kernels::tiled_mm(&on_a, &on_b, &mut c, n as u32).grid((tiles, tiles)));
        let found = stream.download(&c).and_then(|copy| copy.wait()).expect("copied");
        for (i, &found) in found.iter().enumerate() {
            let (row, column) = (i / n, i % n);
            // The kernel adds in this order, and zeros after it.
            let expected =
                (0..n).fold(0f32, |sum, k| a[row * n + k].mul_add(b[k * n + column], sum));
            assert_eq!(found, expected, "n = {n}, row {row}, column {column}");
        }
    }
}

#[test]
fn guard_sync_guard() {
    let (scheduler, stream) = stream();
    let input: Vec<u32> = (0..300).collect();
    let on_device = scheduler.buffer(&input).expect("memory");
    let mut out = scheduler.buffer(&[u32::MAX; 300]).expect("memory");
    run(&stream, kernels::guard_sync_guard(&on_device, &mut out).grid(3));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert!((0..300).all(|i| found[i] == input[i ^ 1]));
}

#[test]
fn struct_arg() {
    let (scheduler, stream) = stream();
    for negate in [false, true] {
        let affine = Affine { factor: 1.5, offsets: [10.0, -20.0], negate, count: 99 };
        let mut out = scheduler.buffer(&[f64::from(POISON); 100]).expect("memory");
        run(&stream, kernels::struct_arg(affine, &mut out).grid(4).block(32));
        let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
        for (i, &found) in found[..99].iter().enumerate() {
            let value = i as f64 * 1.5 + affine.offsets[i % 2];
            assert_eq!(found, if negate { -value } else { value });
        }
        assert!(found[99].is_nan(), "not written");
    }
}

#[test]
fn arrays_by_value_are_read_at_any_index() {
    let (scheduler, stream) = stream();
    let mut random = Random(4);
    let mut unit = |_| random.unit();
    let (by_lane, by_row): ([f32; 32], [f32; 800]) =
        (std::array::from_fn(&mut unit), std::array::from_fn(&mut unit));
    let x: Vec<f32> = (0..300_000).map(unit).collect();
    let on_device = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.buffer(&vec![POISON; x.len()]).expect("memory");
    let call = kernels::weighted(Weights { by_lane }, by_row, &on_device, &mut out);
    run(&stream, call.threads(x.len()));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    for (i, &found) in found.iter().enumerate() {
        assert_eq!(found, x[i] * (by_lane[i % 32] * by_row[i / 256 % 800]), "element {i}");
    }
}

#[test]
fn slices_are_compared() {
    let (scheduler, stream) = stream();
    let table = [1, 2, 3, 4, 5, 6, 7, 8];
    let x: Vec<u32> = (0..1000).flat_map(|i| table.map(|of| of + u32::from(of == i % 9))).collect();
    let on_device = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.buffer(&[u32::MAX; 1000]).expect("memory");
    run(&stream, kernels::same_as_table(table, &on_device, &mut out).threads(1000));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert!(found.iter().enumerate().all(|(i, &found)| found == u32::from(i % 9 == 0)));
}

#[test]
fn window_sums() {
    let (scheduler, stream) = stream();
    let mut random = Random(5);
    let x: Vec<f32> = (0..1000).map(|_| random.unit()).collect();
    let on_device = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.buffer(&[POISON; 1000]).expect("memory");
    run(&stream, kernels::window_sums(&on_device, &mut out).grid(4));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    for (i, &found) in found.iter().enumerate() {
        let near = [16, 8, 4, 2, 1].into_iter().filter_map(|distance| x.get(i + distance));
        assert_eq!(found, near.fold(0.0, |sum, x| sum + x), "element {i}");
    }
}

#[test]
fn a_reference_that_others_write_to_is_read_again_on_the_gpu() {
    // Elsewhere the behaviour is undefined, and nothing guards against it.
    if !on_gpu() {
        return;
    }
    let (scheduler, stream) = stream();
    let mut out = scheduler.buffer(&[u32::MAX; 1024]).expect("memory");
    run(&stream, kernels::exchanged(&mut out).grid(8));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert!(found.iter().enumerate().all(|(i, &found)| found == i as u32 ^ 1));
}

#[test]
fn helpers_see_the_indices_of_the_task() {
    let (scheduler, stream) = stream();
    for (grid, block) in [((60, 1, 1), (8, 1, 1)), ((6, 10, 1), (4, 2, 1)), ((3, 4, 5), (2, 2, 2))]
    {
        let mut here = scheduler.zeroed::<u32>(480).expect("memory");
        let mut there = scheduler.zeroed::<u32>(480).expect("memory");
        let mut generic = scheduler.zeroed::<u64>(480).expect("memory");
        let call = kernels::helper_indices(&mut here, &mut there, &mut generic);
        run(&stream, call.grid(grid).block(block).amortize(4));
        let here = stream.download(&here).and_then(|copy| copy.wait()).expect("copied");
        let there = stream.download(&there).and_then(|copy| copy.wait()).expect("copied");
        let generic = stream.download(&generic).and_then(|copy| copy.wait()).expect("copied");
        for i in 0..480u32 {
            let at = i as usize;
            assert_eq!((here[at], there[at], generic[at]), (i / 8, i / 8, u64::from(i / 8)));
        }
    }
}

#[test]
fn warp_sums() {
    let (scheduler, stream) = stream();
    let mut random = Random(3);
    let mut input: Vec<u32> = (0..256).map(|_| random.below(1000)).collect();
    input[64..96].iter_mut().for_each(|value| *value |= 1);
    input[96..128].iter_mut().for_each(|value| *value &= !1);
    let on_device = scheduler.buffer(&input).expect("memory");
    let mut out = scheduler.buffer(&[u32::MAX; 48]).expect("memory");
    run(&stream, kernels::warp_sums(&on_device, &mut out).grid(4));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    for (warp, found) in input.chunks(32).zip(found.chunks(6)) {
        let sum = warp.iter().sum();
        let ballot = (0..32).fold(0, |ballot, lane| ballot | (warp[lane] % 2) << lane);
        let (all, any) = (u32::from(ballot == u32::MAX), u32::from(ballot != 0));
        assert_eq!(found, [sum, sum, ballot, all, any, warp[8..16].iter().sum()]);
    }
}

#[test]
fn warps_match_and_reduce_also_where_lanes_are_missing() {
    let (scheduler, stream) = stream();
    let mut random = Random(6);
    // Blocks of 40 threads: each second warp has 8.
    let mut input: Vec<u32> = (0..240).map(|_| random.below(4) | (random.below(2) << 31)).collect();
    input[40..80].fill(7);
    input[112..120].fill(8);
    let on_device = scheduler.buffer(&input).expect("memory");
    let mut out = scheduler.buffer(&[u32::MAX; 240 * kernels::MATCHES]).expect("memory");
    run(&stream, kernels::warp_matches(&on_device, &mut out).grid(6));
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    let mut found = found.chunks(kernels::MATCHES);
    for warp in input.chunks(40).flat_map(|block| block.chunks(32)) {
        let lanes =
            |value| (0..warp.len()).fold(0u32, |lanes, i| lanes | u32::from(warp[i] == value) << i);
        let signed = || warp.iter().map(|&value| value as i32);
        let all = |of: fn(u32, u32) -> u32| warp.iter().copied().reduce(of).expect("lanes");
        for &value in warp {
            let same = lanes(value);
            let everywhere = if same.count_ones() as usize == warp.len() { same } else { 0 };
            let expected = [
                same,
                same,
                everywhere,
                everywhere,
                all(u32::wrapping_add),
                all(u32::min),
                all(u32::max),
                all(|a, b| a & b),
                all(|a, b| a | b),
                all(|a, b| a ^ b),
                signed().min().expect("lanes") as u32,
                signed().max().expect("lanes") as u32,
                1,
            ];
            assert_eq!(found.next().expect("a thread"), expected);
        }
    }
}

/// Runs a kernel of atomics on 1000 threads of two blocks, from words that do not hide what it does; the words after.
macro_rules! atomics {
    ($kernel:ident $ty:ident, $start:expr, $blocks:expr) => {{
        let (scheduler, stream) = stream();
        let start: [$ty; kernels::atomics::RESULTS] = $start;
        let mut words = scheduler.buffer(&start).expect("memory");
        run(&stream, kernels::atomics::$kernel(&mut words).grid($blocks).block(500 * 2 / $blocks));
        stream.download(&words).and_then(|copy| copy.wait()).expect("copied")
    }};
}

#[test]
fn atomics_lose_no_update() {
    let (sum, xor) = (499_500, (0..1000).fold(0, |xor, i| xor ^ i));
    macro_rules! integers {
        ($($kernel:ident $ty:ident $blocks:literal;)*) => {
            $({
                let words = atomics!($kernel $ty, [0, 5, 5, 1023, 0, 0, 0, 2000], $blocks);
                assert_eq!(words[..7], [sum as $ty, 0, 999, 0, 1023, xor as $ty, sum as $ty]);
                assert!(words[7] < 1000);
            })*
        };
    }
    integers! {
        atomics_u32 u32 2;
        atomics_i32 i32 2;
        // The atomics of a block's scope, so one block.
        atomics_u64 u64 1;
        atomics_i64 i64 2;
    }
    macro_rules! floats {
        ($($kernel:ident $ty:ident;)*) => {
            $({
                let words = atomics!($kernel $ty, [0.0, 5.0, $ty::NAN, 1.0, 1.0, 1.0, 0.0, 2000.0], 2);
                assert_eq!(words[..7], [sum as $ty, 0.0, 999.0, 1.0, 1.0, 1.0, sum as $ty]);
                assert!(words[7] < 1000.0);
            })*
        };
    }
    floats! {
        atomics_f32 f32;
        atomics_f64 f64;
    }
}

#[test]
fn every_task_runs_on_an_sm_of_the_device() {
    let (scheduler, stream) = stream();
    let mut sms = scheduler.buffer(&[u32::MAX; 500]).expect("memory");
    run(&stream, kernels::sm_of_task(&mut sms).grid(500).block(4));
    let sms = stream.download(&sms).and_then(|copy| copy.wait()).expect("copied");
    let count = if on_gpu() { 1024 } else { 3 };
    assert!(sms.iter().all(|&sm| sm < count));
}
