//! Plays the threads of a pool in many interleavings, by shuttle; `scheduler/runtime/interleavings.rs` says how.

use std::sync::Arc;
use std::time::Duration;

use preempt_device::prelude::*;

use super::{Application, Class, Pool, Stop, Task, TaskHandle, UserFacingFirst};
use crate::device::model::Settings;
use crate::error::{Error, PoolError};
use crate::scheduler::{Testbed, explore};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::thread;

#[preemptible(block = 1)]
fn short() {}

/// A pool of one device, which two applications submit to at the same time.
fn play(stop: Stop, end: fn(Pool, [TaskHandle<u32>; 2])) {
    let testbed = Testbed::with(Settings { sms: 2, is_polled: false, memory: None });
    let builder = Pool::builder().scheduler(testbed.scheduler()).policy(UserFacingFirst);
    let pool = builder.stop(stop).build().expect("a pool");
    let submit = |class| {
        let application = pool.application(class);
        thread::spawn(move || submit(&application))
    };
    let threads = [submit(Class::Batch), submit(Class::UserFacing)];
    let handles = threads.map(|thread| thread.join().expect("no panic"));
    end(pool, handles);
}

/// A task that gives the number of its runs.
fn submit(application: &Application) -> TaskHandle<u32> {
    let runs = Arc::new(AtomicU32::new(0));
    let task = Task::new("task", move |run| {
        let number = runs.fetch_add(1, Ordering::SeqCst) + 1;
        run.launch(short().grid(2))?;
        run.check()?;
        Ok(number)
    });
    application.submit(&task).expect("accepted")
}

#[test]
fn tasks_yield_to_others_and_give_their_results() {
    explore(|| {
        play(Stop::Yield(Duration::ZERO), |pool, handles| {
            for handle in handles {
                assert_eq!(handle.wait().expect("a result"), 1);
            }
            assert_eq!(pool.stats().finished, 2);
        });
    });
}

#[test]
fn revoked_tasks_run_again() {
    explore(|| {
        play(Stop::Revoke(Duration::ZERO), |pool, [batch, user]| {
            assert_eq!(user.wait().expect("a result"), 1);
            let runs = batch.wait().expect("a result");
            // It may be told to leave before its body is called.
            assert!(u64::from(runs) <= 1 + pool.stats().revocations);
        });
    });
}

#[test]
fn tasks_are_cancelled_and_given_up() {
    explore(|| {
        play(Stop::Yield(Duration::ZERO), |pool, [batch, user]| {
            batch.cancel();
            let closes = thread::spawn(move || drop(pool));
            match user.wait() {
                Ok(1) | Err(Error::Pool(PoolError::PoolDropped { .. })) => {}
                result => panic!("{result:?}"),
            }
            match batch.wait() {
                Ok(1)
                | Err(Error::Pool(PoolError::Cancelled { .. } | PoolError::PoolDropped { .. })) => {
                }
                result => panic!("{result:?}"),
            }
            closes.join().expect("no panic");
        });
    });
}
