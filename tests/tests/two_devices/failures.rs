//! Producers that fail, operations that are cancelled, devices that are full, and schedulers that are dropped.

use super::*;

#[test]
fn a_failed_producer_on_another_device_loses_the_input() {
    let (one, other) = (scheduler(), scheduler());
    let mut buffer = one.zeroed::<u32>(LEN).expect("memory");
    let mut out = other.zeroed::<u32>(LEN).expect("memory");
    let fails = kernels::panics(1, &mut buffer).grid(2).block(BLOCK);
    drop(one.stream(0).launch(fails).expect("accepted"));
    let call = kernels::sum(&buffer, &buffer, &mut out).threads(LEN as u32);
    for stream in [other.stream(0), other.stream(0), one.stream(0)] {
        let error = launch(&stream, call.clone()).expect_err("its input is lost");
        assert!(
            matches!(error, Error::Launch(LaunchError::InputLost { kernel: "panics" })),
            "{error:?}"
        );
    }
    // The contents that the lost input was for are lost as well, on both sides.
    for scheduler in [&one, &other] {
        let error = contents(&scheduler.stream(0), &out).expect_err("never written");
        assert!(
            matches!(error, Error::Launch(LaunchError::InputLost { kernel: "panics" })),
            "{error:?}"
        );
    }
    // After an upload on either device, both are there again.
    let upload = other.stream(0).upload(vec![1; LEN], &mut buffer).expect("accepted");
    in_time(&upload).expect("copied");
    let upload = one.stream(0).upload(vec![9; LEN], &mut out).expect("accepted");
    in_time(&upload).expect("copied");
    assert_eq!(contents(&one.stream(0), &buffer).expect("copied"), [1; LEN]);
    launch(&one.stream(0), call).expect("runs");
    assert_eq!(contents(&other.stream(0), &out).expect("copied"), [2; LEN]);
}

#[test]
fn without_room_on_the_second_device_a_launch_is_refused_and_the_contents_stay() {
    let (one, other) = (scheduler(), narrow());
    let data: Vec<u32> = (5..).take(LEN).collect();
    let mut buffer = one.buffer(&data).expect("memory");
    let held = other.zeroed::<u8>(100).expect("memory");
    let call = kernels::scale(3, &mut buffer).threads(LEN as u32);
    let error = launch(&other.stream(0), call.clone()).expect_err("no room");
    assert!(
        matches!(error, Error::Memory(MemoryError::OutOfMemory { bytes }) if bytes == 4 * LEN),
        "{error:?}"
    );
    assert!(error.to_string().contains("drop buffers"), "{error}");
    launch(&one.stream(0), call.clone()).expect("runs");
    drop(held);
    launch(&other.stream(0), call).expect("now there is room");
    let expected = scaled(3, &scaled(3, &data));
    assert_eq!(contents(&one.stream(0), &buffer).expect("copied"), expected);
    // All of the buffer's memory is freed with it.
    drop(buffer);
    let start = std::time::Instant::now();
    while other.zeroed::<u8>(4 * LEN + 20).is_err() {
        assert!(start.elapsed() < LONG, "memory is missing");
        std::thread::yield_now();
    }
}

#[test]
fn contents_stay_reachable_when_their_scheduler_is_replaced_and_not_without_one() {
    let device = device();
    let (one, other) = (scheduler_on(&device), scheduler());
    let mut buffer = one.buffer(&[3u32; LEN]).expect("memory");
    drop(one);
    let error = contents(&other.stream(0), &buffer).expect_err("nothing can copy them");
    assert!(
        matches!(error, Error::Argument(ArgumentError::ContentsElsewhere { name: "a copy", .. })),
        "{error:?}"
    );
    assert!(error.to_string().contains("build another one for it"), "{error}");
    let one = scheduler_on(&device);
    launch(&other.stream(0), kernels::scale(2, &mut buffer).threads(LEN as u32)).expect("runs");
    assert_eq!(contents(&one.stream(0), &buffer).expect("copied"), scaled(2, &[3; LEN]));
    // An upload needs nothing from the other device.
    let stranded = one.buffer(&[3u32; LEN]).expect("memory");
    drop((one, device));
    let mut stranded = stranded;
    let upload = other.stream(0).upload(vec![4; LEN], &mut stranded).expect("accepted");
    in_time(&upload).expect("copied");
    assert_eq!(contents(&other.stream(0), &stranded).expect("copied"), [4; LEN]);
}

#[test]
fn a_source_that_is_dropped_before_the_copy_loses_the_input_of_the_target() {
    let (one, other) = (scheduler(), scheduler());
    let (gate, mut log, writes) = write_under_way(&one, LEN);
    let waits = kernels::scale(2, &mut log).threads(LEN as u32);
    let waits = other.stream(0).launch(waits).expect("accepted");
    let drops = std::thread::spawn(move || drop(one));
    // The copy was behind the kernel, and is given up at once; the kernel still stands there.
    let error = in_time(&waits).expect_err("nothing came");
    assert!(matches!(error, Error::Launch(LaunchError::InputLost { .. })), "{error:?}");
    assert!(error.to_string().contains("a move between devices"), "{error}");
    assert!(error.to_string().contains("upload the buffer anew"), "{error}");
    gate.open();
    let _ = in_time(&writes);
    drops.join().expect("no panic");
    let upload = other.stream(0).upload(vec![4; LEN], &mut log).expect("accepted");
    in_time(&upload).expect("copied");
    assert_eq!(contents(&other.stream(0), &log).expect("copied"), [4; LEN]);
}

#[test]
fn a_target_that_is_dropped_before_the_copy_has_no_contents_for_the_next_scheduler() {
    let device = device();
    let (one, other) = (scheduler(), scheduler_on(&device));
    let (gate, mut log, writes) = write_under_way(&one, LEN);
    let download = other.stream(0).download(&log).expect("accepted");
    drop(other);
    let error = in_time(&download).expect_err("its scheduler is gone");
    assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
    let other = scheduler_on(&device);
    let download = other.stream(0).download(&log).expect("accepted");
    gate.open();
    in_time(&writes).expect("runs");
    assert_eq!(in_time(&download).expect("moved anew")[..2], [1, 7]);

    // A write that was dropped with its scheduler leaves nothing to move.
    let gate = Gate::new(&one);
    let writes = one.stream(0).launch(gated(&gate.0, &mut log, 8).grid(1)).expect("accepted");
    gate.wait_for(1);
    let scales = kernels::scale(2, &mut log).threads(LEN as u32);
    let scales = other.stream(0).launch(scales).expect("accepted");
    drop(other);
    let error = in_time(&scales).expect_err("its scheduler is gone");
    assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
    gate.open();
    in_time(&writes).expect("runs");
    let other = scheduler_on(&device);
    for scheduler in [&one, &other] {
        let error = contents(&scheduler.stream(0), &log).expect_err("nothing is there");
        assert!(matches!(error, Error::Launch(LaunchError::InputLost { .. })), "{error:?}");
    }
    let upload = one.stream(0).upload(vec![4; LEN], &mut log).expect("accepted");
    in_time(&upload).expect("copied");
    assert_eq!(contents(&other.stream(0), &log).expect("copied"), [4; LEN]);
}

#[test]
fn an_upload_that_is_cancelled_on_another_device_leaves_no_stale_contents() {
    let (one, other) = (scheduler(), scheduler());
    let gate = Gate::new(&other);
    let mut log = other.zeroed::<u32>(2).expect("memory");
    let mut buffer = one.buffer(&[3u32; LEN]).expect("memory");
    let stream = other.stream(0);
    let before = stream.launch(gated(&gate.0, &mut log, 0).grid(1)).expect("accepted");
    let upload = stream.upload(vec![4; LEN], &mut buffer).expect("accepted");
    upload.cancel();
    let error = in_time(&upload).expect_err("cancelled");
    assert!(matches!(error, Error::Launch(LaunchError::Cancelled { .. })), "{error:?}");
    gate.open();
    in_time(&before).expect("runs");
    for scheduler in [&other, &one] {
        let error = contents(&scheduler.stream(0), &buffer).expect_err("nothing valid is there");
        assert!(
            matches!(error, Error::Launch(LaunchError::InputLost { kernel: "a copy" })),
            "{error:?}"
        );
    }
}

#[test]
fn a_launch_that_is_cancelled_while_its_move_waits_leaves_the_contents() {
    let (one, other) = (scheduler(), scheduler());
    let (gate, mut log, writes) = write_under_way(&one, LEN);
    let scales = kernels::scale(2, &mut log).threads(LEN as u32);
    let scales = other.stream(0).launch(scales).expect("accepted");
    scales.cancel();
    let error = in_time(&scales).expect_err("cancelled");
    assert!(matches!(error, Error::Launch(LaunchError::Cancelled { done: 0, .. })), "{error:?}");
    gate.open();
    in_time(&writes).expect("runs");
    assert_eq!(contents(&one.stream(0), &log).expect("copied")[..3], [1, 7, 0]);
}

#[test]
fn an_upload_outlives_the_move_that_it_overwrites() {
    let device = device();
    let (one, other) = (scheduler(), scheduler_on(&device));
    let (gate, mut log, writes) = write_under_way(&one, LEN);
    let fails = kernels::panics(1, &mut log).grid(2).block(BLOCK);
    let fails = one.stream(0).launch(fails).expect("accepted");
    // Its move is behind the kernel that fails.
    let download = other.stream(0).download(&log).expect("accepted");
    let upload = other.stream(0).upload(vec![4; LEN], &mut log).expect("accepted");
    gate.open();
    in_time(&writes).expect("runs");
    in_time(&fails).expect_err("it panics");
    in_time(&download).expect_err("its input is lost");
    in_time(&upload).expect("copied");
    drop(other);
    let other = scheduler_on(&device);
    for scheduler in [&other, &one] {
        assert_eq!(contents(&scheduler.stream(0), &log).expect("copied"), [4; LEN]);
    }
}
