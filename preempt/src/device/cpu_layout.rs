use preempt_device::abi::MAX_SMS;

/// The layout of an emulated GPU: its SMs, the blocks that each holds, and its memory.
///
/// By default, one SM for each processor, one block on each, and as much memory as the host gives.
///
/// ```
/// use preempt::{CpuLayout, Device};
///
/// // 4 SMs with 2 blocks each, and 16 MiB for buffers.
/// let device = Device::cpu_with(CpuLayout::sms(4).blocks_per_sm(2).memory(16 << 20))?;
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a layout does nothing until `Device::cpu_with`"]
pub struct CpuLayout {
    pub(super) sms: u32,
    pub(super) blocks_per_sm: u32,
    pub(super) memory: Option<usize>,
    pub(super) has_peers: bool,
}

impl CpuLayout {
    /// This number of SMs, from 1 to 1023, with one block each.
    pub const fn sms(sms: u32) -> CpuLayout {
        CpuLayout { sms, blocks_per_sm: 1, memory: None, has_peers: true }
    }

    /// Sets how many blocks an SM holds, from 1 to 32. Each is a host thread; more blocks than processors only share
    /// these.
    pub const fn blocks_per_sm(mut self, blocks: u32) -> CpuLayout {
        self.blocks_per_sm = blocks;
        self
    }

    /// Sets how many bytes the buffers have in all, to try out what an application does when memory runs out.
    pub const fn memory(mut self, bytes: usize) -> CpuLayout {
        self.memory = Some(bytes);
        self
    }

    /// Has contents of buffers come from other devices, and go there, through the host's memory, as between GPUs that
    /// do not read each other's. See [`Device::can_access_peer`](crate::Device::can_access_peer).
    pub const fn without_peers(mut self) -> CpuLayout {
        self.has_peers = false;
        self
    }
}

impl Default for CpuLayout {
    fn default() -> CpuLayout {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        CpuLayout::sms(processors.min(MAX_SMS as usize) as u32)
    }
}
