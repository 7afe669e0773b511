//! Which devices of a pool have tasks.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use preempt::pool::Class;

/// Bodies of tasks that are on each device.
#[derive(Debug)]
pub struct Occupancy {
    /// Of each device and class.
    bodies: Vec<[AtomicU32; 2]>,
}

/// A number of devices at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Devices with a user-facing task.
    pub user_facing: u32,
    /// The others that have a batch task.
    pub batch: u32,
}

/// A body on a device, until it is dropped.
#[derive(Debug)]
pub struct Entered<'a>(Option<&'a AtomicU32>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Relaxed);
        }
    }
}

impl Occupancy {
    /// This number of devices, without tasks.
    pub fn new(devices: usize) -> Occupancy {
        Occupancy { bodies: (0..devices).map(|_| Default::default()).collect() }
    }

    /// A task of this class begins.
    pub fn enter(&self, device: usize, class: Class) -> Entered<'_> {
        let count = self.bodies.get(device).map(|bodies| &bodies[class as usize]);
        if let Some(count) = count {
            count.fetch_add(1, Relaxed);
        }
        Entered(count)
    }

    /// Whether a user-facing task is on a device at this moment.
    pub fn is_user_facing(&self, device: usize) -> bool {
        let of = |bodies: &[AtomicU32; 2]| bodies[Class::UserFacing as usize].load(Relaxed) > 0;
        self.bodies.get(device).is_some_and(of)
    }

    /// The devices with tasks at this moment.
    pub fn used(&self) -> Used {
        let mut used = Used::default();
        for bodies in &self.bodies {
            let [user_facing, batch] =
                [Class::UserFacing, Class::Batch].map(|class| bodies[class as usize].load(Relaxed));
            used.user_facing += u32::from(user_facing > 0);
            used.batch += u32::from(user_facing == 0 && batch > 0);
        }
        used
    }
}
