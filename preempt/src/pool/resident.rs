//! What stays on a device between the tasks that use it.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::run::{NamedBuffer, Run};
use crate::error::Error;
use crate::sync::{Mutex, contain, lock};

/// What tasks need on their device and do not make anew each time: the weights of a network, the buffers that it works in, the
/// program that runs it.
///
/// It is made on each device by the first run there that [asks](Run::resident) for it, and kept for later ones of the pool. A run
/// has it for itself, and may write it, until its operations are over; when it asks again, it gets the same. Where two runs on
/// a device ask at the same time, or one asks again before it has dropped the first, there are two of it. What a run has used that
/// was revoked, or has failed, is dropped, and so is what no run uses where a device has no room.
///
/// ```
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn scale(by: &[u32], x: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     if i < x.len() {
/// #         // SAFETY: each thread writes its own element.
/// #         unsafe { x.write(i, by[i] * x.read(i)) }
/// #     }
/// # }
/// use preempt::pool::{Class, Pool, Resident, Task};
/// use preempt::{Buffer, Device, Error, Program};
///
/// struct Network {
///     input: Buffer<u32>,
///     forward: Program,
/// }
///
/// let network = Resident::new(|run| {
///     let (weights, mut input) = (run.buffer(&[2; 32])?, run.zeroed(32)?);
///     let forward = run.program("forward", |program| program.launch(scale(&weights, &mut input).threads(32)).map(drop))?;
///     Ok(Network { input, forward })
/// });
/// let infer = move |input: Vec<u32>| {
///     let network = network.clone();
///     Task::new("infer", move |run| {
///         let mut network = run.resident(&network)?;
///         run.upload(&input, &mut network.input)?;
///         run.launch_program(&network.forward)?;
///         run.download(&network.input)
///     })
/// };
/// let pool = Pool::builder().device(Device::cpu()?).build()?;
/// let service = pool.application(Class::UserFacing);
/// for input in [1, 5] {
///     assert_eq!(service.submit(&infer(vec![input; 32]))?.wait()?, [2 * input; 32]);
/// }
/// # Ok::<(), Error>(())
/// ```
pub struct Resident<T> {
    shared: Arc<Shared<T>>,
}

type Make<T> = dyn Fn(&Run) -> Result<T, Error> + Send + Sync;

struct Shared<T> {
    make: Box<Make<T>>,
    idle: Mutex<Vec<Instance<T>>>,
}

/// A device of a pool. Another pool on the same device has another scheduler, and programs belong to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub pool: usize,
    pub device: usize,
}

struct Instance<T> {
    place: Place,
    /// Buffers that a run with it may write.
    own: Vec<NamedBuffer>,
    value: T,
}

impl<T: Send + 'static> Resident<T> {
    /// What is made like this, in a run on its device, with that run's operations.
    pub fn new(make: impl Fn(&Run) -> Result<T, Error> + Send + Sync + 'static) -> Resident<T> {
        Resident { shared: Arc::new(Shared { make: Box::new(make), idle: Mutex::default() }) }
    }

    pub(super) fn of_run<'a>(&self, run: &'a Run) -> Result<Borrowed<'a, T>, Error> {
        let (shared, place) = (self.shared.clone(), run.place());
        let used = run.take_used(key(&shared)).and_then(|used| used.into_any().downcast().ok());
        let idle = || {
            let mut idle = lock(&shared.idle);
            let at = idle.iter().position(|instance| instance.place == place);
            at.map(|at| idle.swap_remove(at))
        };
        let known = used.map(|used: Box<UsedInstance<T>>| used.instance).or_else(idle);
        let instance = match known {
            Some(instance) => {
                run.may_write(instance.own.iter().map(|(id, _)| *id));
                instance
            }
            None => {
                run.keeps(Arc::downgrade(&shared) as Weak<dyn Evict>);
                let before = run.made();
                let value = (shared.make)(run)?;
                Instance { place, own: run.take_made(before), value }
            }
        };
        Ok(Borrowed { run, shared, made: run.made(), instance: Some(instance) })
    }
}

/// A number that no other resident has at the same time.
fn key<T>(shared: &Arc<Shared<T>>) -> usize {
    Arc::as_ptr(shared).addr()
}

impl<T> Clone for Resident<T> {
    fn clone(&self) -> Self {
        Resident { shared: self.shared.clone() }
    }
}

impl<T> fmt::Debug for Resident<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = lock(&self.shared.idle).len();
        f.debug_struct("Resident").field("idle", &idle).finish_non_exhaustive()
    }
}

/// Gives back device memory that no run uses.
pub(super) trait Evict: Send + Sync {
    /// Drops what is idle on a device; returns whether there was any.
    fn evict(&self, place: Place) -> bool;
}

impl<T: Send + 'static> Evict for Shared<T> {
    fn evict(&self, place: Place) -> bool {
        let dropped: Vec<_> =
            lock(&self.idle).extract_if(.., |instance| instance.place == place).collect();
        let is_any = !dropped.is_empty();
        // Code of the application.
        contain(|| drop(dropped));
        is_any
    }
}

/// What a run has for itself and does not use now.
pub(super) trait Used: Send {
    fn key(&self) -> usize;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    /// Gives it to other runs if the run has given its result, and drops it otherwise.
    fn end(self: Box<Self>, is_right: bool);
}

struct UsedInstance<T> {
    shared: Arc<Shared<T>>,
    instance: Instance<T>,
}

impl<T: Send + 'static> Used for UsedInstance<T> {
    fn key(&self) -> usize {
        key(&self.shared)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn end(self: Box<Self>, is_right: bool) {
        let UsedInstance { shared, instance } = *self;
        if is_right {
            lock(&shared.idle).push(instance);
        }
    }
}

/// A [`Resident`] of a run's device, which the run has for itself.
pub struct Borrowed<'a, T: Send + 'static> {
    run: &'a Run,
    shared: Arc<Shared<T>>,
    /// How many buffers the run had made for itself.
    made: usize,
    /// There until it is dropped.
    instance: Option<Instance<T>>,
}

impl<T: Send + 'static> Deref for Borrowed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.instance.as_ref().expect("it is not dropped").value
    }
}

impl<T: Send + 'static> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.instance.as_mut().expect("it is not dropped").value
    }
}

impl<T: Send + 'static> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        let Some(mut instance) = self.instance.take() else { return };
        // The run may have put new ones in the place of old ones.
        instance.own.extend(self.run.take_made(self.made));
        instance.own.retain(|(_, memory)| memory.strong_count() > 0);
        self.run.keep_used(Box::new(UsedInstance { shared: self.shared.clone(), instance }));
    }
}

impl<T: fmt::Debug + Send + 'static> fmt::Debug for Borrowed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
