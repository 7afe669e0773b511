//! Launches whose arguments are borrowed.

use std::fmt;
use std::marker::PhantomData;

use preempt_device::host::{Call, HasGrid};

use super::handle::Handle;
use crate::engine::LaunchReport;
use crate::error::Error;
use crate::scheduler::{Scheduler, Stream};
use crate::sync::{Mutex, lock};

/// Launches that end before the memory that they borrow; see [`Scheduler::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    /// Launches that may not have ended.
    handles: Mutex<Vec<Handle<()>>>,
    /// Neither lifetime may be made shorter, as for [`std::thread::Scope`].
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Scheduler {
    /// Calls `body`, which can launch kernels on memory that it borrows, and waits for all of them.
    ///
    /// A failed launch leaves what it writes in an unknown state. The scheduler remembers that of its own buffers
    /// ([`LaunchError::InputLost`](crate::error::LaunchError::InputLost)), but not of borrowed memory. So wait for each
    /// launch whose result is used.
    ///
    /// Buffers of this scheduler need no scope, since they are counted. Others' do, such as `cust`'s
    /// `&DeviceBuffer` (feature `cust`): dropping a [`Handle`] does not stop a launch, so nothing but
    /// waiting keeps its memory in place.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn fill(value: u32, out: SliceMut<u32>) {
    /// #     // SAFETY: each thread writes its own element.
    /// #     unsafe { out.write(thread::index_1d() as usize, value) }
    /// # }
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// let mut out = scheduler.zeroed::<u32>(64)?;
    /// scheduler.scope(|scope| {
    ///     let handle = scope.launch(&stream, fill(7, &mut out).grid(2))?;
    ///     println!("{:?}", handle.wait()?);
    ///     Ok::<(), preempt::Error>(())
    /// })?;
    /// assert_eq!(stream.download(&out)?.wait()?, [7; 64]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        let (handles, scope, env) = (Mutex::default(), PhantomData, PhantomData);
        let scope = Scope { handles, scope, env };
        let _waits = WaitForAll(&scope.handles);
        body(&scope)
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Launches a kernel on a stream, as [`Stream::launch`] does.
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch`], and [`ArgumentError::NotAllocated`](crate::error::ArgumentError::NotAllocated).
    pub fn launch<G: HasGrid>(
        &'scope self,
        stream: &Stream,
        call: Call<'scope, G>,
    ) -> Result<Handle<LaunchReport>, Error> {
        // SAFETY: the scope waits for it, and what it borrows lives longer than the scope.
        let handle = unsafe { stream.launch_borrowing(call.with_its_grid())? };
        let mut handles = lock(&self.handles);
        handles.retain(|handle| !handle.is_done());
        handles.push(handle.untyped());
        Ok(handle)
    }
}

/// Waits on drop, after a panic too.
struct WaitForAll<'a>(&'a Mutex<Vec<Handle<()>>>);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        let handles = std::mem::take(&mut *lock(self.0));
        for handle in handles {
            // The application's handle has the result.
            let _ = handle.wait();
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("launches", &lock(&self.handles).len()).finish()
    }
}
