//! An own policy: the newest launch has the device.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use preempt::policy::{Arrival, DeviceView, Packing, Plan, Policy};
use preempt::prelude::*;
use preempt::{CpuLayout, LaunchId};

/// Last come, first served.
#[derive(Debug, Default)]
struct Lifo {
    launches: Vec<LaunchId>,
}

impl Policy for Lifo {
    fn name(&self) -> &str {
        "last come, first served"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.launches.push(launch.id);
    }

    // The launch keeps its place, whatever its priority is now.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.launches.retain(|&other| other != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        // The newest launch has as many SMs as it can use, and the others share the rest.
        plan.share(self.launches.iter().rev().copied(), Packing::Spread, device);
    }
}

/// The launches that block-tasks wait for, the launches that have started, and the order in which block-tasks ran.
/// Kernels on a GPU have no such statics.
static SUBMITTED: AtomicU32 = AtomicU32::new(0);
static STARTED: AtomicU32 = AtomicU32::new(0);
static ORDER: Mutex<Vec<u32>> = Mutex::new(Vec::new());
const LAUNCHES: u32 = 4;

/// Waits until all launches are submitted, and records the launch of this block-task.
#[preemptible(block = 1, amortize = 1)]
fn note(launch: u32) {
    STARTED.fetch_add(1, SeqCst);
    while SUBMITTED.load(SeqCst) < LAUNCHES {
        std::thread::yield_now();
    }
    ORDER.lock().unwrap_or_else(PoisonError::into_inner).push(launch);
}

fn main() -> Result<()> {
    let device = Device::cpu_with(CpuLayout::sms(1))?;
    let scheduler = Scheduler::builder().device(device).policy(Lifo::default()).build()?;
    let mut handles = Vec::new();
    for launch in 1..=LAUNCHES {
        // Each launch has its own stream, because launches of one stream run in order, whatever the policy says.
        handles.push(scheduler.stream(0).launch(note(launch).grid(2))?);
        // The first launch is under way when the others come.
        while STARTED.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        SUBMITTED.fetch_add(1, SeqCst);
    }
    for handle in handles {
        handle.wait()?;
    }
    // Fails if the policy gave an invalid plan.
    scheduler.synchronize()?;
    let order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    println!("block-tasks ran in this order: {order:?}");
    assert_eq!(*order, [1, 4, 4, 3, 3, 2, 2, 1]);
    Ok(())
}
