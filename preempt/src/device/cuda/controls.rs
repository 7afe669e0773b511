//! Control blocks and their posts: many at once, before anything runs, because the driver may wait for
//! everything when it pins memory.

use std::ptr;
use std::sync::{Arc, Mutex};

use preempt_device::abi::{COHORT_SLOTS, ControlBlock, Post};

use super::context::{Context, call};
use super::lock;
use super::memory::{Pinned, Pool};
use crate::device::ControlMemory;
use crate::error::Error;

/// Control blocks that are allocated together: one for each launch in flight.
const SLAB: usize = 4096;

const BYTES: usize = SLAB * size_of::<ControlBlock>();
const POSTS: usize = size_of::<[Post; COHORT_SLOTS]>();

#[derive(Debug)]
pub(super) struct Controls {
    slabs: Mutex<Slabs>,
    pool: Arc<Pool>,
    context: Arc<Context>,
}

#[derive(Debug)]
struct Slabs {
    slabs: Vec<Slab>,
    /// Control blocks in use.
    used: usize,
}

#[derive(Debug)]
struct Slab {
    /// The control blocks, on the device.
    address: u64,
    posts: Pinned,
}

impl Controls {
    /// The context is entered.
    pub fn new(context: &Arc<Context>, pool: &Arc<Pool>) -> Result<Controls, Error> {
        let first = Slab::new(context, pool)?;
        let slabs = Mutex::new(Slabs { slabs: vec![first], used: 0 });
        Ok(Controls { slabs, pool: pool.clone(), context: context.clone() })
    }

    /// A zeroed control block with zeroed posts.
    pub fn take(&self) -> Result<ControlMemory, Error> {
        let mut slabs = lock(&self.slabs);
        let (slab, index) = (slabs.used / SLAB, slabs.used % SLAB);
        if slab == slabs.slabs.len() {
            let _entered = self.context.enter()?;
            slabs.slabs.push(Slab::new(&self.context, &self.pool)?);
        }
        slabs.used += 1;
        let Slab { address, posts } = &slabs.slabs[slab];
        let control = *address as usize + index * size_of::<ControlBlock>();
        Ok(ControlMemory {
            control: ptr::with_exposed_provenance(control),
            // The device has them at the same addresses.
            posts: posts.at(index * POSTS).cast_const().cast(),
        })
    }

    /// Takes all of them back: the scheduler that had them is gone. The context is entered.
    pub fn reset(&self) -> Result<(), Error> {
        let mut slabs = lock(&self.slabs);
        slabs.used = 0;
        for Slab { address, posts } in &slabs.slabs {
            // SAFETY: allocated with this size, and nobody uses it.
            let zeroed = self.pool.line().issue(|stream| unsafe {
                call!(self.context, cuMemsetD8Async(*address, 0, BYTES, stream))
            })?;
            // SAFETY: allocated with this size, and nobody uses it.
            unsafe { posts.at(0).write_bytes(0, posts.bytes()) };
            self.pool.line().wait(zeroed)?;
        }
        Ok(())
    }
}

impl Slab {
    fn new(context: &Arc<Context>, pool: &Pool) -> Result<Slab, Error> {
        // First, because it may wait for what runs; then nothing is left to fill memory beside.
        let posts = Pinned::new(context, SLAB * POSTS)?;
        Ok(Slab { address: pool.allocate(BYTES, true)?, posts })
    }
}

impl Drop for Controls {
    fn drop(&mut self) {
        for slab in &lock(&self.slabs).slabs {
            // SAFETY: allocated with this size, and the device with all its users is gone.
            unsafe { self.pool.free(slab.address, BYTES) }
        }
    }
}
