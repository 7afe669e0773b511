//! Fills in programs, and calls that have nothing to do.

use std::fmt::Debug;

use preempt::{KernelArg, Preemption, Scheduler};
use preempt_test_kernels as kernels;

use super::{LEN, contents, run, scaled, scheduler};

in_both_forms! {
    values_of_any_size_are_filled_in
    buffers_without_elements_need_nothing
}

fn filled<T: KernelArg + PartialEq + Debug>(scheduler: &Scheduler, before: T, value: T) {
    let stream = scheduler.stream(0);
    // From different bytes on, and different numbers of elements.
    for (start, end) in [(0, 0), (0, 1), (3, 4), (1, 78), (0, 1000), (17, 999)] {
        let mut buffer = scheduler.buffer(&[before; 1000]).expect("memory");
        let program = stream
            .program("fill", |program| program.fill(&mut buffer.slice_mut(start..end)?, value));
        run(&program.expect("recorded")).expect("runs");
        let mut expected = vec![before; 1000];
        expected[start..end].fill(value);
        assert_eq!(contents(&stream, &buffer), expected, "{start}..{end}");
    }
}

fn values_of_any_size_are_filled_in(form: Preemption) {
    let scheduler = scheduler(form);
    filled(&scheduler, 1u8, 7);
    filled(&scheduler, 1u16, 0x0102);
    filled(&scheduler, [9u8; 3], [1, 2, 3]);
    filled(&scheduler, 1u32, 0x0102_0304);
    filled(&scheduler, 1.0f32, 0.0);
    filled(&scheduler, 1u64, u64::MAX - 1);
    filled(&scheduler, 2.0f64, -1.5);
    filled(&scheduler, [1u32; 3], [1, 1, 2]);
    filled(&scheduler, [1u16; 3], [1, 2, 3]);
    filled(&scheduler, [1u64; 40], [u64::MAX / 3; 40]);
    filled(&scheduler, [0u32; 11], std::array::from_fn(|at| at as u32));
    filled(&scheduler, [0u8; 1024], std::array::from_fn(|at| at as u8));
}

fn buffers_without_elements_need_nothing(form: Preemption) {
    let scheduler = scheduler(form);
    let stream = scheduler.stream(0);
    let [mut none, mut also_none] = [0; 2].map(|_| scheduler.zeroed::<u32>(0).expect("memory"));
    let mut x = scheduler.buffer(&[5u32; LEN]).expect("memory");
    let program = stream.program("nothing", |program| {
        program.fill(&mut none, 7)?;
        program.copy_buffer(&none, &mut also_none)
    });
    assert_eq!(run(&program.expect("recorded")).expect("runs").tasks, 0);
    let program = stream.program("little", |program| {
        program.copy_buffer(&none, &mut also_none)?;
        program.launch(kernels::scale(2, &mut none).threads(LEN))?;
        program.fill(&mut x.slice_mut(3..3)?, 7)?;
        program.launch(kernels::scale(2, &mut x).threads(LEN))?;
        program.fill(&mut none, 7)
    });
    assert_eq!(run(&program.expect("recorded")).expect("runs").tasks, 8);
    assert_eq!(contents(&stream, &x), scaled(2, &[5; LEN]));
}
