//! First uses of the device, before anything else runs. They find out how SMs are numbered, and touch everything that the
//! driver sets up at its first use, when it might wait for a running kernel.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::Signal;

use super::code::Code;
use super::context::{Context, call};
use super::copies::CopyStreams;
use super::driver::{DeviceAttribute, RawStream};
use super::memory::{Pinned, Pool, Zeroing};
use super::queues::DeviceQueues;
use super::streams::Stream;
use super::transfer;
use crate::device::{CopyKind, Properties, Rows};
use crate::error::{DeviceError, Error};

/// Writes the number of SM ids, one SM id that is too large, and which of the other ids exist.
///
/// Each block stays for a while, so that the grid fills the device and every SM has a block.
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry preempt_probe(.param .u64 words, .param .u32 sms, .param .u64 cycles)
{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<8>;
    mov.u64 %rd1, %clock64;
    ld.param.u64 %rd2, [words];
    ld.param.u32 %r1, [sms];
    ld.param.u64 %rd3, [cycles];
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r2, %nsmid;
    st.global.u32 [%rd2], %r2;
    mov.u32 %r3, %smid;
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra BEYOND;
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd5, %rd2, %rd4;
    mov.u32 %r4, 1;
    st.global.u32 [%rd5+8], %r4;
    bra STAY;
BEYOND:
    st.global.u32 [%rd2+4], %r3;
STAY:
    mov.u64 %rd6, %clock64;
    sub.u64 %rd7, %rd6, %rd1;
    setp.lt.u64 %p2, %rd7, %rd3;
    @%p2 bra STAY;
    ret;
}
";

/// Index into the probe's words: where the SMs start.
const FIRST_SM: usize = 2;

/// Cycles that a block stays: longer than the launch of the grid takes.
const STAY: u64 = 40_000;

/// Repetitions of the probe where not every SM was seen, because other processes may use the device.
const TRIES: u32 = 10;

/// The longest that a step here may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses a device whose SMs are not numbered without gaps, numbers those of a part anew, and warms up everything else. The
/// context is entered.
pub(super) fn probe(
    context: &Arc<Context>,
    properties: &Properties,
    queues: &DeviceQueues,
    pool: &Pool,
    lines: &CopyStreams,
) -> Result<(), Error> {
    // Those of a part have numbers of the whole GPU.
    let sms = context.attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let words = Pinned::new(context, (FIRST_SM + sms as usize) * 4)?;
    let code = Code::load(context, "preempt_probe", PTX)?;
    let entry = code.function("preempt_probe")?;
    let launch = |blocks: u32, stream: &Stream| {
        let (address, stay) = (words.at(0) as u64, STAY);
        let mut parameters = [
            (&raw const address).cast_mut().cast::<c_void>(),
            (&raw const sms).cast_mut().cast::<c_void>(),
            (&raw const stay).cast_mut().cast::<c_void>(),
        ];
        let (function, raw) = (entry.0, stream.raw());
        let parameters = parameters.as_mut_ptr();
        // SAFETY: these are the entry's parameters, and the words are there until the stream is idle.
        unsafe {
            call!(
                context,
                cuLaunchKernel(
                    function,
                    blocks,
                    1,
                    1,
                    1,
                    1,
                    1,
                    0,
                    raw,
                    parameters,
                    ptr::null_mut()
                )
            )?;
        }
        settle(context, stream)
    };

    for queue in queues.streams() {
        launch(1, queue)?;
    }
    queues.signal(0, Signal::default())?;
    settle(context, queues.control())?;
    warm_up(context, pool, lines)?;

    let mut seen = Vec::new();
    for _ in 0..TRIES {
        launch(properties.sms * properties.blocks_per_sm, queues.stream(0))?;
        seen = (0..words.bytes() / 4)
            // SAFETY: within the memory, aligned, and no longer written.
            .map(|word| unsafe { words.at(word * 4).cast::<u32>().read_volatile() })
            .collect();
        let is_known = judge(&seen)?;
        let are_known = match context.part() {
            Some(part) => {
                let seen = seen.iter().skip(FIRST_SM).enumerate();
                part.number(seen.filter(|(_, seen)| **seen != 0).map(|(sm, _)| sm))
            }
            None => is_known,
        };
        if are_known {
            return Ok(());
        }
    }
    Err(Error::Device(DeviceError::Unsupported {
        reason: format!(
            "{} of its {} SMs did not run anything in {TRIES} trials; is something else running on it?",
            properties.sms.saturating_sub(
                seen.iter().skip(FIRST_SM).filter(|word| **word != 0).count() as u32
            ),
            properties.sms
        )
        .into(),
    }))
}

/// Whether the probe's words show that SMs are numbered from 0 without gaps; `false` if they do not show it yet.
fn judge(words: &[u32]) -> Result<bool, Error> {
    let [ids, beyond, seen @ ..] = words else { return Ok(false) };
    if *beyond != 0 {
        return Err(Error::Device(DeviceError::Unsupported {
            reason: format!(
                "it has {} SMs, and one of them has the number {beyond}; grants are ranges of \
                 numbers and need them without gaps (is this a MIG instance?)",
                seen.len()
            )
            .into(),
        }));
    }
    // As many ids as SMs, or every id seen.
    Ok(*ids as usize == seen.len() || seen.iter().all(|seen| *seen != 0))
}

/// Waits until a stream is done, for a limited time.
pub(super) fn settle(context: &Context, stream: &Stream) -> Result<(), Error> {
    if stream.settle(TIMEOUT)? {
        return Ok(());
    }
    context.abandon();
    let reason = "it does not run anything; is something else running on it?".into();
    Err(Error::Device(DeviceError::Unsupported { reason }))
}

/// Uses each line, and each function of the driver that may be a kernel of its own.
fn warm_up(context: &Context, pool: &Pool, lines: &CopyStreams) -> Result<(), Error> {
    let device = pool.allocate(2 * BYTES, Zeroing::ByCopies)?;
    let result = use_lines(context, pool, lines, device);
    // SAFETY: allocated above, and each line was waited for.
    unsafe { pool.free(device, 2 * BYTES) };
    result
}

/// Bytes of the longest of the copies that warm up.
const BYTES: usize = 1 << 20;

/// Copies within `2 * bytes` at `device`, and zeroes some.
fn use_lines(
    context: &Context,
    pool: &Pool,
    lines: &CopyStreams,
    device: u64,
) -> Result<(), Error> {
    let host = pool.zeros();
    let zeros = host as u64;
    let use_line = |line: &super::streams::TrackedStream,
                    work: &dyn Fn(RawStream) -> Result<(), Error>| {
        let issued = line.issue(work);
        // After an error, too: a part of the work may be on its way, and the memory is freed.
        let settled = settle(context, line.stream());
        issued.and(settled)
    };
    // The driver chooses between several kernels by length and alignment.
    for (offset, bytes) in [(0, BYTES), (0, 64), (1, 2), (1, 4099), (2, 4098), (4, 4100)] {
        let (there, here) = (device + BYTES as u64 + offset, device + offset);
        for line in [&lines.across, &lines.from_peers] {
            // SAFETY: both are within the memory.
            use_line(line, &|stream| unsafe {
                call!(context, cuMemcpyDtoDAsync_v2(there, here, bytes, stream))
            })?;
        }
        // SAFETY: within the memory.
        use_line(pool.line(), &|stream| unsafe {
            call!(context, cuMemsetD8Async(here, 0, bytes, stream))
        })?;
        // SAFETY: within the memory, aligned to what is set.
        use_line(&lines.across, &|stream| unsafe {
            call!(context, cuMemsetD16Async(device, 0, bytes / 2, stream))?;
            call!(context, cuMemsetD32Async(device, 0, bytes / 4, stream))
        })?;
        let rows = |from_pitch, to_pitch| Rows { bytes: 2, count: 8, from_pitch, to_pitch };
        // SAFETY: within the memory.
        use_line(&lines.across, &|stream| unsafe {
            transfer::enqueue(context, stream, CopyKind::OnDevice, here, there, rows(4, 6))
        })?;
        for line in [&*lines.small_up, &lines.large_up] {
            // SAFETY: within the memory, and within the zeros.
            use_line(line, &|stream| unsafe {
                transfer::enqueue(context, stream, CopyKind::ToDevice, zeros, here, rows(2, 4))
            })?;
            // SAFETY: within the memory, and within the zeros.
            use_line(line, &|stream| unsafe {
                call!(
                    context,
                    cuMemcpyHtoDAsync_v2(here, host.cast(), bytes - offset as usize, stream)
                )
            })?;
        }
        for line in [&lines.small_down, &lines.large_down] {
            // SAFETY: within the memory, of which these bytes are zero, and within the zeros.
            use_line(line, &|stream| unsafe {
                transfer::enqueue(context, stream, CopyKind::ToHost, here, zeros, rows(4, 2))
            })?;
            // The words read are zero, so the zeros stay as they are.
            // SAFETY: within the memory, and within the zeros.
            use_line(line, &|stream| unsafe {
                call!(
                    context,
                    cuMemcpyDtoHAsync_v2(host.cast(), here, bytes - offset as usize, stream)
                )
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use preempt_ptx_text::{blanked, functions};

    #[test]
    fn sms_without_gaps_are_accepted() {
        assert!(judge(&[4, 0, 1, 1, 1, 1]).expect("no id is too large"));
        assert!(judge(&[4, 0, 1, 0, 1, 1]).expect("no id is too large"), "there are no other ids");
        assert!(judge(&[8, 0, 1, 1, 1, 1]).expect("no id is too large"), "all were seen");
    }

    #[test]
    fn others_are_refused_or_tried_again() {
        assert!(!judge(&[8, 0, 1, 0, 1, 1]).expect("the last SM may be somewhere else"));
        let error = judge(&[8, 5, 1, 0, 1, 1]).expect_err("5 is beyond 4");
        assert!(error.to_string().contains("number 5"), "{error}");
        assert!(!judge(&[]).expect("nothing is known"));
    }

    #[test]
    fn the_probe_is_an_entry() {
        let text = blanked(PTX);
        assert!(functions(&text)["preempt_probe"].is_entry);
    }
}
