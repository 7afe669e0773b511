//! Contexts, streams, events and memory of an application, by their handles, on the fake driver.

use std::ffi::c_void;
use std::ptr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use preempt::error::{ArgumentError, DeviceError, LaunchError};
use preempt::raw::{Lent, LentRead};
use preempt::{Device, Error, Scheduler};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::fake::{self, TheirEvent, TheirStream, their_context};
use crate::workloads::Found;

/// Time in which what nothing waits for happens.
const WHILE: Duration = Duration::from_millis(50);

/// A job of the application, which has its own way to the memory.
fn change(address: u64, change: impl FnOnce(u32) -> u32 + Send + 'static) -> impl FnOnce() + Send {
    move || {
        let word = address as *mut u32;
        // SAFETY: the test's own memory, which the order of streams gives to this job alone.
        unsafe { word.write(change(word.read())) }
    }
}

pub fn run(device: &Device, found: &mut Found) {
    contexts(device, found);
    let builder = Scheduler::builder().device(device.clone());
    let Some(scheduler) = found.take(builder.kernels(device_code::module()).build()) else {
        return;
    };
    order(&scheduler, found);
    memory(&scheduler, found);
}

/// A primary context is its device, and others are refused.
fn contexts(device: &Device, found: &mut Found) {
    // SAFETY: the driver has this context.
    let same = unsafe { Device::from_raw(their_context()) };
    let Some(same) = found.take(same) else { return };
    let one = found.take(Scheduler::builder().device(device.clone()).build());
    let two = Scheduler::builder().device(same).build();
    let is_taken = matches!(two, Err(Error::Device(DeviceError::Taken)));
    found.expect(is_taken, || format!("not the same device: {two:?}"));
    drop(one);
    let other = their_context().wrapping_byte_add(8);
    // SAFETY: the driver takes it for another context of that device.
    let refused = unsafe { Device::from_raw(other) };
    let is_refused =
        matches!(refused, Err(Error::Device(DeviceError::OtherContext { ordinal: 0 })));
    found.expect(is_refused, || format!("another context: {refused:?}"));
    // SAFETY: null is an error.
    let none = unsafe { Device::from_raw(ptr::null_mut::<c_void>()) };
    let is_refused = matches!(none, Err(Error::Device(DeviceError::Driver { code: 201, .. })));
    found.expect(is_refused, || format!("no context: {none:?}"));
}

/// Each change needs the one before it, on whatever side.
fn order(scheduler: &Scheduler, found: &mut Found) {
    let (stream, theirs) = (scheduler.stream(0), TheirStream::new());
    let counts = fake::Lent::new(1);
    let writes = fake::Lent::new(1);
    let address = counts.address();
    let (go, held) = channel::<()>();
    theirs.put(move || held.recv().expect("told to go on"));
    theirs.put(change(address, |_| 5));
    let (mut handles, mut launches) = (Vec::new(), Vec::new());
    scheduler.scope(|scope| {
        // SAFETY: the memory outlives the scope, and the order with other uses of it is what is tested.
        let mut lent = unsafe { (Lent::<u32>::new(address, 1), Lent::new(writes.address(), 1)) };
        let mut count = |found: &mut Found| {
            let call = kernels::count_1d(&mut lent.0, &mut lent.1).grid(1).block(1);
            found.take(scope.launch(&stream, call))
        };
        // SAFETY: the stream is never destroyed.
        let waits = found.take(unsafe { stream.wait_for_raw(theirs.raw()) });
        let first = count(found);
        let is_early = first.as_ref().is_some_and(|launch| launch.wait_timeout(WHILE).is_some());
        found.expect(!is_early || found.errors > 0, || "nothing waited for the stream".into());
        go.send(()).expect("it waits");
        let put = move || {
            theirs.put(|| thread::sleep(WHILE));
            theirs.put(change(address, |count| 10 * count));
            Ok(())
        };
        // SAFETY: as above.
        handles.extend(found.take(unsafe { stream.run_raw(theirs.raw(), put) }));
        handles.extend(waits);
        launches.extend(first);
        launches.extend(count(found));
        for launch in launches.drain(..) {
            found.take(launch.wait());
        }
        theirs.put(|| thread::sleep(WHILE));
        theirs.put(change(address, |count| 10 * count));
        let event = TheirEvent::recorded_in(theirs);
        // SAFETY: the event is never destroyed.
        handles.extend(found.take(unsafe { stream.wait_for_raw_event(event.raw()) }));
        launches.extend(count(found));
    });
    for launch in launches {
        found.take(launch.wait());
    }
    for handle in handles {
        found.take(handle.wait());
    }
    // 5 + 1, times 10, + 1, times 10, + 1; where a call fails, what it was for is told and left out.
    let counted = counts.words();
    let is_right = counted == [611] || found.errors > 0;
    found.expect(is_right, || format!("{counted:?} instead of 611"));

    let fails = || Err("as intended".into());
    // SAFETY: the stream is never destroyed.
    let failed = unsafe { stream.run_raw(theirs.raw(), fails) }.and_then(|handle| handle.wait());
    let is_told = matches!(&failed, Err(Error::Launch(LaunchError::KernelFailed { message, .. })) if message.contains("as intended"));
    found.expect(is_told, || format!("work that fails: {failed:?}"));
    theirs.capture();
    // SAFETY: as above.
    let refused = unsafe { stream.wait_for_raw(theirs.raw()) }.map(drop);
    let is_told = matches!(&refused, Err(Error::Device(DeviceError::Driver { message, .. })) if message.contains("end the capture"));
    found.expect(is_told, || format!("a stream that is captured: {refused:?}"));
}

/// What is lent, adopted, given back, and refused.
fn memory(scheduler: &Scheduler, found: &mut Found) {
    const LEN: usize = 64;
    let stream = scheduler.stream(0);
    let theirs = fake::Lent::new(LEN);
    let address = theirs.address();
    let Some(mut own) = found.take(scheduler.zeroed::<u32>(LEN)) else { return };
    for (at, len) in [(address, LEN + 1), (address + 4, LEN), (4, 1)] {
        // SAFETY: refused before anything uses it.
        let refused = unsafe { scheduler.adopt_raw::<u32>(at, len) }.map(drop);
        let is_refused =
            matches!(refused, Err(Error::Argument(ArgumentError::NotAllocated { .. })));
        found.expect(is_refused, || format!("{len} words at {at:#x}: {refused:?}"));
        // SAFETY: as above.
        let (mut lent, read) = unsafe { (Lent::<u32>::new(at, len), LentRead::<u32>::new(at, 0)) };
        let refused = scheduler.scope(|scope| {
            let call = kernels::count_1d(&mut own, &mut lent).grid(1).block(1);
            scope.launch(&stream, call).map(drop)
        });
        let is_refused =
            matches!(refused, Err(Error::Argument(ArgumentError::NotAllocated { .. })));
        found.expect(is_refused, || format!("{len} words lent at {at:#x}: {refused:?}"));
        found.expect(format!("{read:?}").contains("[0]"), || format!("{read:?}"));
    }
    // SAFETY: nothing else uses it until it is given back.
    let adopted = unsafe { scheduler.adopt_raw::<u32>(address, LEN) };
    let Some(mut adopted) = found.take(adopted) else { return };
    let call = kernels::count_1d(&mut adopted, &mut own).grid(LEN as u32).block(1);
    let launched = stream.launch(call);
    let back = found.take(stream.to_raw(adopted));
    found.expect(back == Some(address), || format!("given back at {back:x?}"));
    // The launch was over before.
    let words = theirs.words();
    found.expect(words == [1; LEN], || format!("{words:?}"));
    found.take(launched.and_then(|handle| handle.wait()));
    let empty = found.take(scheduler.zeroed::<u32>(0)).and_then(|empty| stream.to_raw(empty).ok());
    found.expect(empty == Some(0), || format!("an empty buffer is at {empty:?}"));
}
