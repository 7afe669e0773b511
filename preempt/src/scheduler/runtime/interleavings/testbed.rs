//! A scheduler on a model device that records what ran.

use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::device::model::{Model, Ran, Settings};
use crate::engine::LaunchReport;
use crate::error::{DeviceError, Error, LaunchError};
use crate::scheduler::{Handle, Scheduler, SchedulerBuilder};
use crate::vocabulary::Costs;

/// A scheduler's device, with its record of what ran.
pub(crate) struct Testbed {
    pub model: Arc<Model>,
    pub device: Device,
}

impl Testbed {
    pub fn new(sms: u32) -> Arc<Testbed> {
        Testbed::with(Settings { sms, is_polled: false, memory: None })
    }

    pub fn with(settings: Settings) -> Arc<Testbed> {
        let (device, model) = Model::device(settings);
        Arc::new(Testbed { model, device })
    }

    pub fn builder(&self) -> SchedulerBuilder {
        // Each look moves the clock by 100 µs. So some turns take several messages in, and some go ahead, before they are
        // late.
        let (call, absence) = (Duration::from_micros(250), Duration::from_micros(850));
        let costs = Costs { call, absence, ..Costs::h200() };
        let builder = Scheduler::builder().device(self.device.clone()).costs(costs);
        builder.wait_spin(Duration::from_micros(150))
    }

    pub fn scheduler(&self) -> Scheduler {
        self.builder().build().expect("no other scheduler has the device")
    }

    /// What ran of an operation on the device.
    pub fn ran<T>(&self, handle: &Handle<T>) -> Ran {
        let op = handle.completion().op.get();
        op.map(|&op| self.model.ran(op)).unwrap_or_default()
    }

    /// Waits for a launch of `tasks` block-tasks, and checks its report against the device's record.
    pub fn end(&self, handle: &Handle<LaunchReport>, tasks: u32) -> Result<LaunchReport, Error> {
        let result = handle.wait();
        assert!(handle.is_done(), "it has a result");
        let Ran { tasks: ran, .. } = self.ran(handle);
        assert!(ran.iter().all(|&times| times <= 1), "a block-task ran twice: {ran:?}");
        let seen = (ran.iter().sum::<u32>(), tasks);
        match result {
            Ok(LaunchReport { tasks: done, .. }) => assert_eq!((done, tasks), seen),
            Err(
                Error::Launch(LaunchError::Cancelled { done, tasks })
                | Error::Launch(LaunchError::SchedulerDropped { done, tasks }),
            ) => {
                assert_eq!((done, tasks), seen)
            }
            // The error does not tell how much was done.
            Err(
                Error::Device(DeviceError::ContextLost { .. })
                | Error::Launch(LaunchError::KernelFailed { .. })
                | Error::Launch(LaunchError::InputLost { .. }),
            ) => {}
            Err(ref error) => panic!("{error:?}"),
        }
        let again = handle.try_wait().map(|result| format!("{result:?}"));
        assert_eq!(again, Some(format!("{result:?}")), "it ends once");
        result
    }

    /// Checks that the first launch's last block-task preceded the second launch's first, if both ran.
    pub fn check_order(&self, first: &Handle<LaunchReport>, second: &Handle<LaunchReport>) {
        if let (Some([_, last]), Some([next, _])) = (self.ran(first).steps, self.ran(second).steps)
        {
            assert!(last < next, "out of order");
        }
    }
}
