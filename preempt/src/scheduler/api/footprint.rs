//! What blocks of a kernel take of an SM, in each of its forms.

use preempt_device::host::{Call, HasGrid};

use super::shape::Shape;
use crate::device::Footprint;
use crate::error::Error;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// What blocks of a kernel take of an SM if it is called like this, and how many of them an SM holds: as a plain grid, and in
    /// the preemptible form.
    ///
    /// Where the preemptible form needs more registers than the plain one, the driver is told to get along with so many that no
    /// block is lost; where that fails, or where the form's shared memory is too much, fewer blocks fit, and this says so.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn double(x: &[u32], out: SliceMut<u32>) {
    /// #     let i = thread::index_1d() as usize;
    /// #     if i < out.len() {
    /// #         // SAFETY: each thread writes its own element.
    /// #         unsafe { out.write(i, 2 * x[i]) }
    /// #     }
    /// # }
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let (x, mut out) = (scheduler.buffer(&[7u32; 1000])?, scheduler.zeroed::<u32>(1000)?);
    /// let footprint = scheduler.footprint(&double(&x, &mut out).threads(1000))?;
    /// assert!(footprint.preemptible.blocks_per_sm >= footprint.plain.blocks_per_sm);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for a launch of the call.
    pub fn footprint<G: HasGrid>(&self, call: &Call<'_, G>) -> Result<Footprint, Error> {
        let call = call.clone().with_its_grid();
        let shape = Shape::of(&call, self.device())?;
        let shared = call.shared_bytes().try_into().unwrap_or(u32::MAX);
        let backend = &self.shared().device.inner.backend;
        backend.footprint(call.kernel(), shape.block, shared, shape.occupancy.blocks_per_sm)
    }
}
