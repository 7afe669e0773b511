//! Threads of a block that disagree, and the state after them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use preempt::{Call, Error};
use preempt_device::prelude::*;
use preempt_test_helpers::sync_if;

use super::Setup;
use preempt::error::LaunchError;

/// Waits for the other threads of its block when it is dropped.
struct WaitsInTheEnd;

impl Drop for WaitsInTheEnd {
    fn drop(&mut self) {
        thread::sync_threads();
        // SAFETY: all lanes of the block come here, or the launch fails.
        unsafe { warp::sync_warp(u32::MAX) };
    }
}

/// Waits in a function, where the attribute does not see it.
fn wait() {
    thread::sync_threads();
}

impl Setup {
    /// The error of a launch; the next launch works.
    fn message(self, call: Call<'static>) -> String {
        let error = self.failure(call);
        assert!(matches!(error, Error::Launch(LaunchError::KernelFailed { .. })), "{error:?}");
        self.check_unharmed();
        error.to_string()
    }
}

#[test]
fn a_destructor_may_wait_while_another_thread_panics() {
    #[preemptible(block = 32)]
    fn panics_beside() {
        let _end = WaitsInTheEnd;
        sync_if(thread::thread_idx_x() < 31);
        if thread::thread_idx_x() == 31 {
            panic!("this thread panics, as a test asks");
        }
    }
    for _ in 0..50 {
        let message = Setup::new().message(panics_beside().grid(8));
        assert!(message.contains("thread (31, 0, 0) panicked: this thread panics"), "{message}");
    }
}

#[test]
fn a_destructor_may_wait_while_its_own_thread_panics() {
    #[preemptible(block = 2)]
    fn panics_first() {
        let _end = WaitsInTheEnd;
        if thread::thread_idx_x() == 0 {
            panic!("this thread panics, as a test asks");
        }
    }
    let message = Setup::new().message(panics_first().grid(8));
    assert!(message.contains("thread (0, 0, 0) panicked: this thread panics"), "{message}");
}

#[test]
fn a_barrier_that_an_unwinding_thread_does_not_wait_at_is_an_error() {
    #[preemptible(block = 2)]
    fn catches() {
        let unwinds = || {
            let _end = WaitsInTheEnd;
            panic!("this thread panics, as a test asks");
        };
        assert!(catch_unwind(unwinds).is_err());
    }
    let message = Setup::new().message(catches().grid(1));
    assert!(message.contains("in a destructor while it unwinds"), "{message}");
}

#[test]
fn a_destructor_may_wait_while_threads_are_given_up() {
    #[preemptible(block = 4)]
    fn disagrees() {
        let _end = (WaitsInTheEnd, WaitsInTheEnd);
        sync_if(thread::thread_idx_x() > 0);
        sync_if(thread::thread_idx_x() > 1);
    }
    for _ in 0..50 {
        let message = Setup::new().message(disagrees().grid(8));
        assert!(message.contains("4 wait at a barrier"), "{message}");
    }
}

/// Times that a kernel's thread caught its unwinding.
static CAUGHT: AtomicU32 = AtomicU32::new(0);

#[test]
fn a_thread_that_catches_what_unwinds_it_is_left_where_it_is() {
    #[preemptible(block = 3)]
    fn stubborn() {
        if thread::thread_idx_x() > 0 {
            let mut again = true;
            while again {
                again = catch_unwind(wait).is_err();
                CAUGHT.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let setup = Setup::new();
    let error = setup.failure(stubborn().grid(1));
    assert!(error.to_string().contains("2 wait at a barrier"), "{error}");
    let caught = CAUGHT.load(Ordering::Relaxed);
    assert!((2..100).contains(&caught), "{caught} times");
    setup.check_unharmed();
}

#[test]
fn a_thread_that_catches_what_unwinds_it_once_ends() {
    #[preemptible(block = 2)]
    fn catches(ends: SliceMut<u32>) {
        let t = thread::thread_idx_x();
        if t == 0 {
            let _ = catch_unwind(AssertUnwindSafe(wait));
            let _ = catch_unwind(AssertUnwindSafe(wait));
            // SAFETY: one thread.
            unsafe { ends.write(0, 1) };
        }
    }
    let mut setup = Setup::new();
    let call = catches(&mut setup.counts).grid(1);
    let error = setup.failure(call);
    assert!(error.to_string().contains("1 wait at a barrier"), "{error}");
    setup.recover();
}

/// The source line that is `line` lines below this one.
fn below(from: u32, line: u32) -> String {
    format!("{}:{}:", file!(), from + line)
}

#[test]
fn threads_at_different_barriers_are_told_where_they_are() {
    const LINE: u32 = line!();
    #[preemptible(block = 64)]
    fn parts() {
        if thread::thread_idx_x() < 32 {
            thread::sync_threads();
        } else {
            thread::sync_threads_count(1);
        }
    }
    let message = Setup::new().message(parts().grid(1));
    for place in [
        format!("thread (0, 0, 0) waits at {}", below(LINE, 4)),
        format!("thread (32, 0, 0) waits at {}", below(LINE, 6)),
    ] {
        assert!(message.contains(&place), "{message}: {place}");
    }
}

/// A mask that differs between threads, which the attribute does not see.
#[derive(Clone, Copy)]
struct Odd;

impl PartialEq<bool> for Odd {
    fn eq(&self, other: &bool) -> bool {
        (thread::thread_idx_x() % 2 == 1) == *other
    }
}

const ODD: Odd = Odd;

#[test]
fn threads_at_different_yield_points_are_told_where_they_are() {
    const LINE: u32 = line!();
    #[preemptible(block = 2, idempotent)]
    fn votes(rounds: u32) {
        thread::sync_threads();
        for _ in 0..rounds {
            if ODD == true {
                yield_point!();
            }
            thread::nanosleep(0);
            if ODD == false {
                yield_point!();
            }
        }
    }
    let message = Setup::new().message(votes(1).grid(1));
    for place in [
        format!("thread (0, 0, 0) waits at {}", below(LINE, 10)),
        format!("thread (1, 0, 0) waits at {}", below(LINE, 6)),
    ] {
        assert!(message.contains(&place), "{message}: {place}");
    }
}

#[test]
fn threads_at_yield_points_behind_different_barriers_are_told_where_they_are() {
    const LINE: u32 = line!();
    #[preemptible(block = 2, idempotent)]
    fn votes() {
        if ODD == true {
            thread::sync_threads();
            yield_point!();
        } else {
            thread::sync_threads();
            yield_point!();
        }
    }
    let message = Setup::new().message(votes().grid(1));
    let places = |at: u32| [below(LINE, at), below(LINE, at + 1)];
    for place in [places(4), places(7)] {
        assert!(place.iter().any(|place| message.contains(place)), "{message}: {place:?}");
    }
}

#[test]
fn lanes_with_one_mask_at_different_shuffles_are_told_where_they_are() {
    const LINE: u32 = line!();
    #[preemptible(block = 32)]
    fn shuffles(masks: [u32; 2], out: SliceMut<u32>) {
        let t = thread::thread_idx_x();
        let value = if t < 16 {
            // SAFETY: it is wrong on purpose if the masks are the same; the CPU device says so.
            unsafe { warp::warp_shuffle_xor(masks[0], t, 1, 32).0 }
        } else {
            // SAFETY: as above.
            unsafe { warp::warp_shuffle_xor(masks[1], t, 1, 32).0 }
        };
        // SAFETY: each thread writes its own element.
        unsafe { out.write(t as usize, value) };
    }
    let mut setup = Setup::new();
    let call = shuffles([0xFFFF, 0xFFFF_0000], &mut setup.counts).grid(1);
    setup.stream.launch(call).expect("accepted").wait().expect("two groups are fine");
    let found = setup.stream.download(&setup.counts).expect("accepted").wait().expect("copied");
    assert!((0..32).all(|t| found[t as usize] == t ^ 1));

    let call = shuffles([u32::MAX; 2], &mut setup.counts).grid(1);
    let message = setup.failure(call).to_string();
    for place in [
        format!("thread (0, 0, 0) waits at {}", below(LINE, 6)),
        format!("thread (16, 0, 0) waits at {}", below(LINE, 9)),
    ] {
        assert!(message.contains(&place), "{message}: {place}");
    }
    setup.recover();
}

#[test]
fn threads_meet_in_a_helper_wherever_they_call_it() {
    #[preemptible(block = 64)]
    fn calls() {
        if thread::thread_idx_x() < 32 {
            wait();
        } else {
            thread::nanosleep(0);
            wait();
        }
    }
    let setup = Setup::new();
    setup.stream.launch(calls().grid(3)).expect("accepted").wait().expect("they meet");
    setup.check_unharmed();
}
