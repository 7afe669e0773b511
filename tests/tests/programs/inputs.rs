//! Inputs: memory of the host that the kernels of a program read where it lies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use preempt::ProgramInput;

use super::armed::settle;
use super::*;

/// Doubles its input, which has as many elements as `out`.
fn doubles(stream: &Stream, out: &mut Buffer<u32>) -> (Program, ProgramInput<u32>) {
    let mut place = None;
    let program = stream.program("doubles", |program| {
        program.preemption(Preemption::Preemptible);
        let input = place.insert(program.input(out.len())?);
        program.launch(kernels::sum(&*input, &*input, &mut *out).threads(out.len())).map(drop)
    });
    (program.expect("recorded"), place.expect("recorded"))
}

#[test]
fn a_launch_reads_what_was_written_before_it_armed_or_not() {
    let builder = Scheduler::builder().device(preempt_test_kit::device(LAYOUT)).kernels(KERNELS);
    let builder = builder.armed_for(Duration::from_millis(100));
    let scheduler = builder.build().expect("a scheduler");
    let stream = scheduler.stream(1);
    let mut out = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (mut program, input) = doubles(&stream, &mut out);
    run(&program).expect("done");
    assert_eq!((input.len(), contents(&stream, &out)), (LEN, vec![0; LEN]));
    let mut armed = 0;
    for round in 0..60 {
        let values: Vec<u32> = (0..LEN as u32).map(|at| at * 7 + round).collect();
        let arms_at = |when, program: &Program| {
            if round % 3 == when {
                program.arm().expect("accepted");
                // Until it has its gate.
                thread::sleep(Duration::from_millis(5));
            }
        };
        arms_at(0, &program);
        program.write(&input).expect("its own").copy_from_slice(&values);
        arms_at(1, &program);
        armed += u32::from(run(&program).expect("done").armed);
        let doubled: Vec<u32> = values.iter().map(|value| 2 * value).collect();
        assert_eq!(contents(&stream, &out), doubled, "round {round}");
    }
    assert!(armed >= 30, "{armed} of 40 began behind their gates");
}

#[test]
fn an_input_is_not_written_while_a_launch_reads_it() {
    if preempt_test_kit::on_gpu() {
        println!("SKIP: its kernel waits for the host");
        return;
    }
    [false, true].into_iter().for_each(written_while_it_runs);
}

fn written_while_it_runs(armed: bool) {
    let builder = Scheduler::builder().device(preempt_test_kit::device(LAYOUT)).kernels(KERNELS);
    let builder = builder.armed_for(Duration::from_secs(10));
    let scheduler = builder.build().expect("a scheduler");
    let stream = scheduler.stream(1);
    let (gate, mut log) = (Gate::new(&scheduler), scheduler.zeroed::<u32>(9).expect("memory"));
    let mut out = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut place = None;
    let program = stream.program("waits", |program| {
        program.preemption(Preemption::Preemptible);
        let input = place.insert(program.input(LEN)?);
        program.launch(gated(&gate.0, &mut log, 1).grid(1))?;
        program.launch(kernels::sum(&*input, &*input, &mut out).threads(LEN)).map(drop)
    });
    let (mut program, input) = (program.expect("recorded"), place.expect("recorded"));
    program.write(&input).expect("its own").fill(3);
    if armed {
        program.arm().expect("accepted");
        settle();
    }
    let launch = program.launch().expect("accepted");
    gate.wait_for(1);
    let opened = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(WHILE);
            opened.store(true, Ordering::SeqCst);
            gate.open();
        });
        let elements = program.write(&input).expect("its own");
        assert!(opened.load(Ordering::SeqCst), "the launch is not over");
        elements.fill(9);
    });
    assert_eq!(in_time(&launch).expect("done").armed, armed);
    assert_eq!(contents(&stream, &out), [6; LEN], "as it was when it was launched");
    run(&program).expect("done");
    assert_eq!(contents(&stream, &out), [18; LEN]);
    // A cancelled launch does not read the input once it is written.
    let launch = program.launch().expect("accepted");
    launch.cancel();
    program.write(&input).expect("its own").fill(4);
    assert!(launch.is_done());
    run(&program).expect("done");
    assert_eq!(contents(&stream, &out), [8; LEN]);
    drop(scheduler);
    let lost = program.launch().map(drop);
    assert!(lost.is_err() || program.write(&input).is_err(), "it is of no use any more");
}

#[test]
fn an_input_is_of_its_program_alone() {
    let scheduler = scheduler(Preemption::Preemptible);
    let stream = scheduler.stream(0);
    let mut out = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (mut program, input) = doubles(&stream, &mut out);
    let (mut other, others_input) = doubles(&stream, &mut out);
    let is_refused = |result: Result<(), Error>| {
        assert!(
            matches!(result, Err(Error::Program(ProgramError::OtherInput { .. }))),
            "{result:?}"
        );
    };
    is_refused(stream.launch(kernels::sum(&input, &input, &mut out).threads(LEN)).map(drop));
    is_refused(program.write(&others_input).map(|_| ()));
    is_refused(other.write(&input).map(|_| ()));
    let (mut none, _) = scales(&stream, 1, &mut out);
    is_refused(none.write(&input).map(|_| ()));
    let record = stream.program("other", |program| {
        program.launch(kernels::sum(&input, &input, &mut out).threads(LEN)).map(drop)
    });
    is_refused(record.map(drop));
    program.write(&input).expect("its own").fill(1);
    run(&program).expect("done");
    assert_eq!(contents(&stream, &out), [2; LEN]);
}
