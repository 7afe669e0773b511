//! Work of other libraries in programs, captured on a GPU, and called at each launch on the CPU device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use cudarc::driver::sys;
use preempt::error::{ArgumentError, LaunchError, ProgramError};
use preempt::{Buffer, Error, Opaque, Preemption, ProgramBuilder, RawStream, Scheduler};
use preempt_test_kernels as kernels;
use preempt_test_kit::{Gate, gated, on_gpu};

use super::{LEN, WHILE, contents, emulated, in_time, run, scaled, scheduler};

in_both_forms! {
    captured_work_has_its_turn_in_each_launch
    it_is_ordered_with_what_uses_its_buffers
    its_failure_is_that_of_the_program
    what_is_wrong_with_a_capture_is_said
    code_that_panics_when_it_is_dropped_harms_nothing
}

/// What a library would do: it fills memory with a value.
fn fill(raw: RawStream, address: u64, value: u32, len: usize) {
    match raw.as_raw() {
        // SAFETY: the stream is the scheduler's, and the memory a buffer's.
        Some(stream) => unsafe {
            sys::cuMemsetD32Async(address, value, len, stream.cast()).result().expect("captured");
        },
        // SAFETY: on the CPU device an address is one of this process, and no other operation has the buffer.
        None => unsafe {
            std::slice::from_raw_parts_mut(address as *mut u32, len).fill(value);
        },
    }
}

fn fills(program: &mut ProgramBuilder<'_>, x: &mut Buffer<u32>, value: u32) -> Result<(), Error> {
    let (address, len) = (x.address(), x.len());
    program.capture(Opaque::new("fill").writes(x), move |raw| {
        fill(raw, address, value, len);
        Ok(())
    })
}

fn captured_work_has_its_turn_in_each_launch(form: Preemption) {
    let scheduler = scheduler(form);
    let stream = scheduler.stream(0);
    let [mut x, mut y] = [1u32, 2].map(|value| scheduler.buffer(&[value; LEN]).expect("memory"));
    let mut place = None;
    let program = stream.program("step", |program| {
        program.launch(kernels::scale(2, &mut x).threads(LEN))?;
        fills(program, &mut y, 7)?;
        place = Some(
            program
                .launch(kernels::sum(&x, y.slice(..)?, &mut scheduler.zeroed(LEN)?).threads(LEN))?,
        );
        program.launch(kernels::scale(3, &mut y).threads(LEN)).map(drop)
    });
    let program = program.expect("recorded");
    let mut expected = vec![1; LEN];
    for _ in 0..10 {
        let report = run(&program).expect("runs");
        assert_eq!((report.tasks, report.plain), (3 * 4, form == Preemption::Plain));
        expected = scaled(2, &expected);
        assert_eq!(contents(&stream, &x), expected);
        assert_eq!(contents(&stream, &y), scaled(3, &[7; LEN]));
    }
    // With nothing else.
    let alone = stream.program("alone", |program| fills(program, &mut x, 9)).expect("recorded");
    drop(stream);
    assert_eq!(run(&alone).expect("runs").tasks, 0);
    assert_eq!(contents(&scheduler.stream(0), &x), [9; LEN]);
    let stats = scheduler.stats();
    assert_eq!(stats.total.done, 11);
}

fn it_is_ordered_with_what_uses_its_buffers(form: Preemption) {
    let scheduler = emulated(form);
    let (stream, other) = (scheduler.stream(0), scheduler.stream(0));
    let gate = Gate::new(&scheduler);
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let program = stream.program("step", |program| fills(program, &mut x, 7)).expect("recorded");
    let before = other.launch(gated(&gate.0, &mut x, 5).grid(1)).expect("accepted");
    gate.wait_for(1);
    let step = program.launch().expect("accepted");
    let read = other.download(&x).expect("accepted");
    assert!(step.wait_timeout(WHILE).is_none() && !read.is_done());
    gate.open();
    in_time(&before).expect("runs");
    assert_eq!(in_time(&read).expect("copied"), [7; LEN]);
    in_time(&step).expect("runs");
}

/// On the CPU device, where the work is called at each launch.
fn its_failure_is_that_of_the_program(form: Preemption) {
    let scheduler = emulated(form);
    let stream = scheduler.stream(0);
    let mut x = scheduler.buffer(&[5u32; LEN]).expect("memory");
    let mut y = scheduler.buffer(&[5u32; LEN]).expect("memory");
    let called = Arc::new(AtomicU32::new(0));
    let calls = called.clone();
    let program = stream.program("step", |program| {
        program.launch(kernels::scale(2, &mut y).threads(LEN))?;
        let opaque = Opaque::new("unlucky").writes(&mut x);
        program.capture(opaque, move |_| match calls.fetch_add(1, SeqCst) {
            0 => Err("no luck".into()),
            1 => panic!("as intended"),
            _ => Ok(()),
        })
    });
    let program = program.expect("recorded");
    for words in ["call 1, `unlucky`: no luck", "call 1, `unlucky`: panicked: as intended"] {
        let error = run(&program).expect_err("no luck");
        let Error::Launch(LaunchError::KernelFailed { kernel: "step", message }) = &error else {
            panic!("{error}");
        };
        assert_eq!(&**message, words);
        let lost = in_time(&stream.download(&x).expect("accepted")).expect_err("lost");
        assert!(matches!(lost, Error::Launch(LaunchError::InputLost { kernel: "step" })), "{lost}");
        for buffer in [&mut x, &mut y] {
            in_time(&stream.upload(vec![5; LEN], buffer).expect("accepted")).expect("copied");
        }
    }
    run(&program).expect("runs");
    assert_eq!(called.load(SeqCst), 3);
}

fn what_is_wrong_with_a_capture_is_said(form: Preemption) {
    let (scheduler, another) = (scheduler(form), emulated(form));
    let stream = scheduler.stream(0);
    let mut foreign = another.zeroed::<u32>(LEN).expect("memory");
    let error = stream.program("elsewhere", |program| fills(program, &mut foreign, 1));
    let error = error.expect_err("another device's buffer");
    assert!(
        matches!(error, Error::Argument(ArgumentError::ForeignBuffer { name: "fill" })),
        "{error}"
    );
    if !on_gpu() {
        return;
    }
    let mut x = scheduler.buffer(&[5u32; LEN]).expect("memory");
    let address = x.address();
    type Work = Box<dyn Fn(*mut std::ffi::c_void) -> Result<(), &'static str> + Send + Sync>;
    let end = |stream: *mut std::ffi::c_void| {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured.
        unsafe { sys::cuStreamEndCapture(stream.cast(), &raw mut graph) }.result().expect("ended");
    };
    let wrong: [(Work, &str); 5] = [
        (Box::new(|_| Err("no luck")), "no luck"),
        (Box::new(|_| panic!("as intended")), "panicked: as intended"),
        (Box::new(|_| Ok(())), "nothing into the stream"),
        (
            Box::new(|stream| {
                // SAFETY: a call that the driver refuses while the stream is captured.
                let _ = unsafe { sys::cuStreamSynchronize(stream.cast()) };
                Ok(())
            }),
            "cannot be captured",
        ),
        (
            Box::new(move |stream| {
                end(stream);
                Ok(())
            }),
            "itself",
        ),
    ];
    for (work, words) in wrong {
        let error = stream.program("wrong", |program| {
            let opaque = Opaque::new("work").writes(&mut x);
            program.capture(opaque, move |raw| Ok(work(raw.as_raw().expect("a GPU"))?))
        });
        let error = error.expect_err("it cannot be captured");
        let Error::Program(ProgramError::Capture { program: "wrong", name: "work", message }) =
            &error
        else {
            panic!("{error}");
        };
        assert!(message.contains(words), "{message}");
    }
    // Nothing of it has harmed the device.
    let program = stream.program("right", |program| {
        program.capture(Opaque::new("work").writes(&mut x), move |raw| {
            fill(raw, address, 3, LEN);
            Ok(())
        })
    });
    run(&program.expect("recorded")).expect("runs");
    assert_eq!(contents(&stream, &x), [3; LEN]);
}

fn code_that_panics_when_it_is_dropped_harms_nothing(form: Preemption) {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as intended");
        }
    }
    let scheduler = emulated(form);
    let stream = scheduler.stream(0);
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    for _ in 0..20 {
        let held = Panics;
        let address = x.address();
        let program = stream.program("step", |program| {
            program.capture(Opaque::new("fill").writes(&mut x), move |raw| {
                let _ = &held;
                fill(raw, address, 7, LEN);
                Ok(())
            })
        });
        let program = program.expect("recorded");
        let handle = program.launch().expect("accepted");
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(program)));
        in_time(&handle).expect("runs");
        drop(dropped);
    }
    check(&scheduler, &mut x);
}

fn check(scheduler: &Scheduler, x: &mut Buffer<u32>) {
    let stream = scheduler.stream(0);
    in_time(&stream.fill(x, 3).expect("accepted")).expect("runs");
    assert_eq!(contents(&stream, x), [3; LEN]);
}

/// Where the work would fill the device, others wait for it, and it is not interrupted.
#[test]
fn captured_work_of_a_preemptible_program_takes_the_device() {
    let scheduler = emulated(Preemption::Preemptible);
    let stream = scheduler.stream(0);
    let [started, goes_on] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let mut x = scheduler.buffer(&[1u32; LEN]).expect("memory");
    let (starts, waits) = (started.clone(), goes_on.clone());
    let program = stream.program("step", |program| {
        program.launch(kernels::scale(2, &mut x).threads(LEN))?;
        program.capture(Opaque::new("waits").writes(&mut x), move |_| {
            starts.store(1, SeqCst);
            while waits.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            Ok(())
        })?;
        program.launch(kernels::scale(3, &mut x).threads(LEN)).map(drop)
    });
    let program = program.expect("recorded");
    let handle = program.launch().expect("accepted");
    while started.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    // It is cancelled behind the work.
    handle.cancel();
    assert!(handle.wait_timeout(WHILE).is_none());
    goes_on.store(1, SeqCst);
    let error = in_time(&handle).expect_err("cancelled");
    assert!(
        matches!(error, Error::Launch(LaunchError::Cancelled { done: 4, tasks: 8 })),
        "{error}"
    );
    assert_eq!(contents(&stream, &x), scaled(2, &[1; LEN]));
    assert_eq!(run(&program).expect("runs").tasks, 8);
}

/// Also where the program may run in both forms.
#[test]
fn a_gpu_captures_work_once() {
    for form in [Preemption::Auto, Preemption::Plain, Preemption::Preemptible] {
        let scheduler = scheduler(form);
        let stream = scheduler.stream(0);
        let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
        let called = Arc::new(AtomicU32::new(0));
        let (calls, address) = (called.clone(), x.address());
        let program = stream.program("step", |program| {
            program.capture(Opaque::new("fill").writes(&mut x), move |raw| {
                calls.fetch_add(1, SeqCst);
                fill(raw, address, 7, LEN);
                Ok(())
            })
        });
        let program = program.expect("recorded");
        for _ in 0..3 {
            run(&program).expect("runs");
        }
        assert_eq!(contents(&stream, &x), [7; LEN]);
        assert_eq!(called.load(SeqCst), if on_gpu() { 1 } else { 3 }, "{form:?}");
    }
}
