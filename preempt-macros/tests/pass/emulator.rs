//! Runs kernels through their CPU entries, thread after thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use preempt_device::abi::{Cohort, DeviceQueue, Signal, SmRange};
use preempt_device::host::{
    BufferArg, Call, Dim3, ReadArg, Rendezvous, ThreadContext, WriteArg, with_thread,
};
use preempt_device::prelude::*;
use preempt_device::yields::Yields;

/// A device buffer in host memory.
pub(crate) struct Buffer<T>(Arc<Memory<T>>);

pub(crate) struct Memory<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: plain data that no two threads of these tests share.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Memory<T> {}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: `Buffer::new` made it of a boxed slice.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.len)) });
    }
}

impl<T: KernelArg> Buffer<T> {
    pub(crate) fn new(values: impl Into<Vec<T>>) -> Buffer<T> {
        let values = values.into().into_boxed_slice();
        let len = values.len();
        Buffer(Arc::new(Memory { start: Box::into_raw(values).cast(), len }))
    }

    pub(crate) fn to_vec(&self) -> Vec<T> {
        // SAFETY: no kernel runs now.
        unsafe { std::slice::from_raw_parts(self.0.start, self.0.len) }.to_vec()
    }

    fn arg(&self) -> BufferArg {
        BufferArg {
            address: self.0.start.expose_provenance() as u64,
            len: self.0.len,
            bytes: self.0.len * size_of::<T>(),
            owner: Some(self.0.clone()),
        }
    }
}

// SAFETY: the owner is the memory that the address is in.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &Buffer<T> {
    fn read_arg(self) -> BufferArg {
        self.arg()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> WriteArg<'_, T> for &mut Buffer<T> {
    fn write_arg(self) -> BufferArg {
        self.arg()
    }
}

pub(crate) fn no_barriers(_: Rendezvous) -> u64 {
    panic!("these kernels have no barriers")
}

pub(crate) fn indices(dim: Dim3) -> impl Iterator<Item = Dim3> {
    let plane = move |z| (0..dim.y).flat_map(move |y| (0..dim.x).map(move |x| Dim3 { x, y, z }));
    (0..dim.z).flat_map(plane)
}

/// Runs a kernel without barriers, one thread after the other, to its end.
pub(crate) fn run(call: Call<'static>) {
    assert_eq!(run_yielding(call, Yields::OFF), 0);
}

/// Runs a kernel without barriers whose SM is taken; returns the number of threads that requeued their task.
pub(crate) fn run_on_a_taken_sm(call: Call<'static>) -> u32 {
    let queue = DeviceQueue::default();
    // SAFETY: all zeros are a cohort; nothing follows its pointers.
    let cohort: Cohort = unsafe { std::mem::zeroed() };
    queue.signal.store(Signal::new(2, SmRange::EMPTY).to_bits(), Relaxed);
    let cohort = Cohort { queue: &queue, signal: Signal::new(1, SmRange::ALL), ..cohort };
    // SAFETY: the queue is alive until all threads have ended.
    run_yielding(call, unsafe { Yields::new(&cohort, 0) })
}

fn run_yielding(call: Call<'static>, yields: Yields) -> u32 {
    run_waiting(call, yields, no_barriers)
}

pub(crate) fn run_waiting(call: Call<'static>, yields: Yields, wait: fn(Rendezvous) -> u64) -> u32 {
    let mut requeued = 0;
    let kernel = call.kernel();
    let block_dim = kernel.block.or(call.block_dim()).expect("a block");
    let mut shared = vec![0_u128; call.shared_bytes().div_ceil(16) as usize];
    for block in indices(call.grid_dim()) {
        for thread in indices(block_dim) {
            let context = ThreadContext {
                thread,
                block,
                block_dim,
                grid_dim: call.grid_dim(),
                sm: 0,
                shared: shared.as_mut_ptr().cast(),
                yields,
                wait,
            };
            // SAFETY: the arguments are those of the call, and the thread is set.
            let requeues = unsafe { with_thread(&context, || (kernel.cpu)(call.args())) };
            requeued += u32::from(requeues);
        }
    }
    requeued
}
