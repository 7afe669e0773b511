//! Slices of which each thread has its own element.

use preempt::error::ConfigurationError;
use preempt::{CpuLayout, Dim3, Error, Scheduler, Stream};
use preempt_test_kernels as kernels;

fn stream() -> (Scheduler, Stream) {
    let scheduler = preempt_test_kit::scheduler(CpuLayout::sms(2));
    let stream = scheduler.stream(0);
    (scheduler, stream)
}

#[test]
fn each_thread_writes_its_own_element_and_none_past_the_end() {
    let (scheduler, stream) = stream();
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let (on_a, on_b) =
        (scheduler.buffer(&a).expect("memory"), scheduler.buffer(&a).expect("memory"));
    let mut out = scheduler.buffer(&[f32::NAN; 1000]).expect("memory");
    let call = kernels::vector_add_own(&on_a, &on_b, &mut out).grid(5);
    stream.launch(call).expect("accepted").wait().expect("runs");
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert!(found.iter().enumerate().all(|(i, &found)| found == 2.0 * i as f32));
}

#[test]
fn a_thread_finds_the_same_element_again() {
    let (scheduler, stream) = stream();
    let mut out = scheduler.buffer(&[100u32; 77]).expect("memory");
    for (grid, block) in [(10, 8), (1, 77), (77, 1)] {
        let call = kernels::add_index(&mut out).grid(grid).block(block);
        stream.launch(call).expect("accepted").wait().expect("runs");
    }
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    assert!(found.iter().enumerate().all(|(i, &found)| found == 100 + 3 * i as u32));
}

#[test]
fn a_grid_or_a_block_of_more_dimensions_is_refused() {
    let (scheduler, stream) = stream();
    let mut out = scheduler.buffer(&[0u32; 64]).expect("memory");
    for (grid, block) in [
        ((4, 2, 1), (8, 1, 1)),
        ((4, 1, 2), (8, 1, 1)),
        ((4, 1, 1), (8, 2, 1)),
        ((4, 1, 1), (8, 1, 2)),
    ] {
        let refused = stream
            .launch(kernels::add_index(&mut out).grid(grid).block(block))
            .expect_err("refused");
        assert!(
            matches!(
                refused,
                Error::Configuration(ConfigurationError::NotOneDimensional {
                    kernel: "add_index",
                    ..
                })
            ),
            "{refused}"
        );
    }
    stream
        .launch(kernels::add_index(&mut out).grid((4, 1, 1)).block((8, 1, 1)))
        .expect("accepted")
        .wait()
        .expect("runs");
}

#[test]
fn more_threads_than_indices_are_refused() {
    let (scheduler, stream) = stream();
    let mut out = scheduler.buffer(&[0u32; 64]).expect("memory");
    let call = kernels::add_index(&mut out).grid(1 << 30).block(5);
    let refused = stream.launch(call).expect_err("refused");
    let expected = ConfigurationError::TooManyThreads {
        kernel: "add_index",
        grid: Dim3::new(1 << 30, 1, 1),
        block: Dim3::new(5, 1, 1),
    };
    assert_eq!(refused.to_string(), Error::Configuration(expected).to_string());
}
