//! The CPU device and the model keep to the contract.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

use super::{Kernels, check, check_counted};
use crate::device::model::{Model, Settings};
use crate::{CpuLayout, Device};

fn add(counts: SliceMut<u32>, index: u32) {
    assert!((index as usize) < counts.len());
    // SAFETY: in bounds, and all kernels here access counts atomically.
    let count = unsafe { AtomicU32::from_ptr(counts.as_mut_ptr().add(index as usize)) };
    count.fetch_add(1, Relaxed);
}

#[preemptible]
fn count(counts: SliceMut<u32>, writes: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        add(counts, thread::block_idx_x());
    }
    add(writes, thread::index());
}

#[preemptible(idempotent)]
fn yielding(starts: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        add(starts, thread::block_idx_x());
    }
    let mut x = thread::index();
    for _ in 0..rounds {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { out.write(thread::index() as usize, x) };
}

// The model knows this kernel and the next by their names.
#[preemptible(idempotent)]
fn patient(_starts: SliceMut<u32>, _rounds: u32, _out: SliceMut<u32>) {
    yield_point!();
}

#[preemptible]
fn faulty(_counts: SliceMut<u32>, _writes: SliceMut<u32>) {
    panic!("as intended");
}

const KERNELS: Kernels = Kernels {
    modules: &[],
    count: |counts, writes| count(counts, writes),
    yielding: |starts, rounds, out| yielding(starts, rounds, out),
    faulty: Some(|counts, writes| faulty(counts, writes)),
    // Kernels of the CPU device bring their code with the call.
    without_code: None,
};

#[test]
fn the_cpu_device_keeps_to_the_contract() {
    check(&Device::cpu_with(CpuLayout::sms(2).blocks_per_sm(2)).expect("a device"), &KERNELS);
    // Enough for the largest check.
    check(&Device::cpu_with(CpuLayout::sms(4).memory(16 << 20)).expect("a device"), &KERNELS);
}

#[test]
fn a_part_of_the_cpu_device_keeps_to_the_contract() {
    let whole = Device::cpu_with(CpuLayout::sms(5).blocks_per_sm(2).memory(32 << 20));
    let parts = whole.expect("a device").split(2).expect("parts");
    check(&parts[1], &KERNELS);
    // The other part is dropped.
    let [first, _] = <[Device; 2]>::try_from(parts).expect("two");
    check(&first, &KERNELS);
}

#[test]
fn the_model_keeps_to_the_contract() {
    for (is_polled, memory) in [(false, None), (true, Some(16 << 20))] {
        let (device, model) = Model::device(Settings { sms: 3, is_polled, memory });
        let yielding = |starts: &mut _, rounds, out: &mut _| patient(starts, rounds, out);
        let kernels = Kernels { yielding, ..KERNELS };
        check_counted(&device, &kernels, Some(&|op| model.ran(op).tasks));
    }
}
