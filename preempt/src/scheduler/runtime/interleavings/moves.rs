//! Contents that move directly between two devices.

use std::sync::Arc;

use super::testbed::Testbed;
use super::{explore, join};
use crate::error::{DeviceError, Error, LaunchError};
use crate::scheduler::{Buffer, Handle, Scheduler};
use crate::sync::thread;

/// A buffer that one device has written and the other one reads, both operations under way.
struct UnderWay {
    testbeds: [Arc<Testbed>; 2],
    schedulers: [Scheduler; 2],
    buffer: Buffer<u32>,
    written: Handle<()>,
    read: Handle<Vec<u32>>,
}

const WRITTEN: [u32; 4] = [1; 4];

fn under_way() -> UnderWay {
    let testbeds = [(); 2].map(|()| Testbed::new(1));
    let schedulers = testbeds.each_ref().map(|testbed| testbed.scheduler());
    let mut buffer = schedulers[0].zeroed::<u32>(4).expect("memory");
    let written = schedulers[0].stream(0).upload(&WRITTEN, &mut buffer).expect("accepted");
    let read = schedulers[1].stream(0).download(&buffer).expect("accepted");
    UnderWay { testbeds, schedulers, buffer, written, read }
}

/// What was read is what was written, or the input was lost on its way.
fn end(read: Handle<Vec<u32>>) {
    match read.wait() {
        Ok(data) => assert_eq!(data, WRITTEN),
        Err(
            Error::Launch(LaunchError::InputLost { .. } | LaunchError::SchedulerDropped { .. })
            | Error::Device(DeviceError::ContextLost { .. }),
        ) => {}
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn contents_are_read_before_they_are_written_again() {
    explore(|| {
        let UnderWay { schedulers: [one, other], mut buffer, written, read, .. } = under_way();
        let mut half = buffer.slice_mut(..2).expect("a range");
        let again = one.stream(0).upload(vec![2; 2], &mut half).expect("accepted");
        let mut half = buffer.slice_mut(2..).expect("a range");
        let there = other.stream(0).upload(vec![3; 2], &mut half).expect("accepted");
        let back = one.stream(0).download(&buffer).expect("accepted");
        assert_eq!(read.wait().expect("copied"), WRITTEN);
        assert_eq!(back.wait().expect("copied"), [2, 2, 3, 3]);
        for handle in [written, again, there] {
            handle.wait().expect("copied");
        }
    });
}

#[test]
fn the_next_scheduler_of_a_source_writes_behind_the_move() {
    explore(|| {
        let UnderWay { testbeds, schedulers: [one, other], mut buffer, written, read } =
            under_way();
        drop(one);
        let one = testbeds[0].scheduler();
        let again = one.stream(0).upload(vec![2; 4], &mut buffer).expect("accepted");
        let reads = thread::spawn(move || end(read));
        again.wait().expect("copied");
        let _ = written.wait();
        join([reads]);
        assert_eq!(
            other.stream(0).download(&buffer).expect("accepted").wait().expect("copied"),
            [2; 4]
        );
    });
}

#[test]
fn a_source_goes_on_when_its_target_is_dropped() {
    explore(|| {
        let UnderWay { schedulers: [one, other], mut buffer, written, read, .. } = under_way();
        let drops = thread::spawn(move || drop(other));
        let again = one.stream(0).upload(vec![2; 4], &mut buffer).expect("accepted");
        again.wait().expect("copied");
        written.wait().expect("copied");
        end(read);
        join([drops]);
    });
}

/// Loses one of the devices.
fn lose(lost: usize) {
    let UnderWay { testbeds, schedulers, mut buffer, written, read } = under_way();
    let testbed = testbeds[lost].clone();
    let loses = thread::spawn(move || testbed.model.lose());
    let again = schedulers[0].stream(0).upload(vec![2; 4], &mut buffer).expect("accepted");
    match again.wait() {
        Ok(()) => {}
        Err(Error::Device(DeviceError::ContextLost { .. })) if lost == 0 => {}
        Err(error) => panic!("{error:?}"),
    }
    let _ = written.wait();
    end(read);
    join([loses]);
    for scheduler in &schedulers {
        scheduler.synchronize().expect("the policy did nothing wrong");
    }
}

#[test]
fn moves_end_with_a_source_that_is_lost() {
    explore(|| lose(0));
}

#[test]
fn moves_end_with_a_target_that_is_lost() {
    explore(|| lose(1));
}
