//! The checks of copies and of memory.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Check, Report, Rig};
use crate::device::{Contents, Copy, CopyKind, OwnedCopy, Rows};
use crate::error::{Error, MemoryError};
use crate::scheduler::Buffer;

/// Each with its name.
pub(super) const ALL: &[(&str, Check)] = &[
    ("copies go up, across and down", copies_go_all_ways),
    ("an element fills memory", elements_fill_memory),
    ("rows are copied with their gaps", rows_keep_their_gaps),
    ("host memory is zeroed, and copied from and to", host_memory_is_copied),
    ("memory is zeroed, bounded and freed", memory_is_bounded),
    ("free memory is counted", memory_is_counted),
    #[cfg(target_os = "linux")]
    ("other processes open shared memory", shared_memory_is_opened),
];

/// Copies, and waits for it.
fn copy(rig: &mut Rig<'_>, copy: Copy, owners: [super::super::Owner; 2]) {
    let op = rig.op();
    // SAFETY: the owners keep what the checks copy, and nothing else uses it meanwhile.
    let copy = unsafe { OwnedCopy::new(copy, owners) };
    rig.session.copy(op, &copy);
    assert_eq!(rig.copy_done(op), None);
}

fn upload(rig: &mut Rig<'_>, data: &Arc<Vec<u32>>, buffer: &Buffer<u32>) {
    let (from, to) = (data.as_ptr() as u64, buffer.address());
    let rows = Rows::one(size_of_val(&data[..]));
    let what = Copy { kind: CopyKind::ToDevice, from, to, rows };
    copy(rig, what, [data.clone(), buffer.memory.clone()]);
}

/// Copies a buffer's contents to the host.
pub(super) fn download(rig: &mut Rig<'_>, buffer: &Buffer<u32>) -> Vec<u32> {
    let mut data = vec![u32::MAX; buffer.len()];
    let to = data.as_mut_ptr() as u64;
    let data = Arc::new(data);
    let (from, rows) = (buffer.address(), Rows::one(4 * buffer.len()));
    let what = Copy { kind: CopyKind::ToHost, from, to, rows };
    copy(rig, what, [data.clone(), buffer.memory.clone()]);
    Arc::try_unwrap(data).expect("the copy is over")
}

fn copies_go_all_ways(rig: &mut Rig<'_>) {
    // Empty, small to a GPU, and large.
    for len in [0, 1, 1000, 1 << 20] {
        let data: Vec<u32> = (0..len).map(|x| x ^ 0x5555_0000).collect();
        let data = Arc::new(data);
        let [first, second] = [(); 2].map(|()| rig.buffer(data.len()));
        upload(rig, &data, &first);
        let (from, to) = (first.address(), second.address());
        let rows = Rows::one(4 * data.len());
        // A device reads its own memory like a peer's.
        for kind in [CopyKind::OnDevice, CopyKind::FromPeer] {
            let none = Arc::new(vec![0; data.len()]);
            upload(rig, &none, &second);
            let across = Copy { kind, from, to, rows };
            copy(rig, across, [first.memory.clone(), second.memory.clone()]);
            assert!(download(rig, &second) == *data, "{len} elements, {kind:?}");
        }
    }
}

/// Copies a few words again and again to all of a buffer of `len` words, beside a kernel or not.
fn fill(rig: &mut Rig<'_>, element: &[u32], len: usize) -> Buffer<u32> {
    let buffer = rig.buffer(len);
    let element = Arc::new(element.to_vec());
    let rows = Rows::repeated(4 * element.len(), len / element.len());
    let (from, to) = (element.as_ptr() as u64, buffer.address());
    let what = Copy { kind: CopyKind::ToDevice, from, to, rows };
    copy(rig, what, [element.clone(), buffer.memory.clone()]);
    buffer
}

fn elements_fill_memory(rig: &mut Rig<'_>) {
    // Of one, two and four equal parts, and without equal parts.
    let elements: [&[u32]; 5] =
        [&[0x0707_0707], &[0x1234_1234], &[0x1234_5678; 2], &[1, 2], &[3, 4, 5]];
    for element in elements {
        // Small to a GPU, and large: there is a piece of 2 MiB, and a bit of the next.
        for times in [1, 100, 200_000] {
            let len = element.len() * times;
            let buffer = fill(rig, element, len);
            assert!(download(rig, &buffer) == element.repeat(times), "{element:x?} * {times}");
        }
    }
    // All blocks are taken, so a kernel that fills memory could not start.
    let tasks = 4 * rig.workers();
    let mut launch = rig.yielding(tasks);
    let order = rig.order(&launch, 0);
    rig.launch(&launch, &order);
    let op = rig.op();
    let (element, buffer) = (Arc::new([7u32]), rig.buffer(100_000));
    let (from, to) = (element.as_ptr() as u64, buffer.address());
    let what = Copy { kind: CopyKind::ToDevice, from, to, rows: Rows::repeated(4, buffer.len()) };
    // SAFETY: the owners keep both, and nothing else uses them meanwhile.
    let what = unsafe { OwnedCopy::new(what, [element, buffer.memory.clone()]) };
    rig.session.copy(op, &what);
    let (mut is_filled, mut is_out) = (false, false);
    while !(is_filled && is_out) {
        for report in rig.next_reports() {
            match report {
                Report::CopyDone(of) if of == op => {
                    is_filled = true;
                    // It may wait for that.
                    rig.stop(0);
                }
                Report::CohortOut(end) => {
                    rig.depart(&mut launch, &end);
                    is_out = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    rig.retire(&launch, true);
    assert!(download(rig, &buffer).iter().all(|&word| word == 7), "beside a kernel");
}

fn rows_keep_their_gaps(rig: &mut Rig<'_>) {
    // Small to a GPU; large; with rows of more than a piece of 2 MiB.
    for (width, height) in [(3, 5), (1000, 300), (600_000, 2)] {
        let (wide, wider) = (width + 7, width + 20);
        let len = wider * height;
        let data: Arc<Vec<u32>> = Arc::new((0..len as u32).collect());
        let [first, second] = [(); 2].map(|()| fill(rig, &[9], len));
        let rows = |from_pitch: usize, to_pitch: usize| Rows {
            bytes: 4 * width,
            count: height,
            from_pitch: 4 * from_pitch,
            to_pitch: 4 * to_pitch,
        };
        let (from, to) = (data.as_ptr() as u64, first.address());
        let what = Copy { kind: CopyKind::ToDevice, from, to, rows: rows(width, wide) };
        copy(rig, what, [data.clone(), first.memory.clone()]);
        let (from, to) = (first.address(), second.address());
        let what = Copy { kind: CopyKind::OnDevice, from, to, rows: rows(wide, wider) };
        copy(rig, what, [first.memory.clone(), second.memory.clone()]);
        let mut out = vec![5u32; len];
        let (from, to) = (second.address(), out.as_mut_ptr() as u64);
        let out = Arc::new(out);
        let what = Copy { kind: CopyKind::ToHost, from, to, rows: rows(wider, wide) };
        copy(rig, what, [second.memory.clone(), out.clone()]);
        let expected = |pitch: usize, gap: u32| {
            let word = |at: usize| match (at / pitch, at % pitch) {
                (row, column) if row < height && column < width => (row * width + column) as u32,
                _ => gap,
            };
            (0..len).map(word).collect::<Vec<_>>()
        };
        assert!(download(rig, &first) == expected(wide, 9), "{width} x {height}, up");
        assert!(download(rig, &second) == expected(wider, 9), "{width} x {height}, across");
        assert!(*out == expected(wide, 5), "{width} x {height}, down");
    }
}

/// Host memory of words, given back on drop.
struct HostWords {
    device: super::super::Device,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is memory; the checks use it from one thread, and the device until a copy is over.
unsafe impl Send for HostWords {}
// SAFETY: as above.
unsafe impl Sync for HostWords {}

impl HostWords {
    fn new(rig: &Rig<'_>, len: usize) -> HostWords {
        let device = rig.device.clone();
        let start = device.inner.backend.memory().allocate_host(4 * len).expect("memory");
        HostWords { device, start, len }
    }

    fn words(&self) -> &[u32] {
        // SAFETY: it is that long and aligned, and no copy is under way.
        unsafe { std::slice::from_raw_parts(self.start.cast().as_ptr(), self.len) }
    }

    fn count_up(&mut self) {
        for at in 0..self.len {
            // SAFETY: as above.
            unsafe { self.start.cast::<u32>().add(at).write(at as u32 + 1) };
        }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        // SAFETY: allocated with this size, and given back once.
        unsafe { self.device.inner.backend.memory().free_host(self.start, 4 * self.len) }
    }
}

fn host_memory_is_copied(rig: &mut Rig<'_>) {
    // The second of the same size gets memory that was used before.
    for len in [0, 100, 100, 1 << 20, 1 << 20] {
        let [mut up, down] = [(); 2].map(|()| HostWords::new(rig, len));
        assert!(up.words().iter().chain(down.words()).all(|&word| word == 0), "{len}");
        up.count_up();
        let (up, down) = (Arc::new(up), Arc::new(down));
        let buffer = rig.buffer(len);
        let (address, rows) = (buffer.address(), Rows::one(4 * len));
        let from = up.start.as_ptr() as u64;
        let what = Copy { kind: CopyKind::ToDevice, from, to: address, rows };
        copy(rig, what, [up.clone(), buffer.memory.clone()]);
        let to = down.start.as_ptr() as u64;
        let what = Copy { kind: CopyKind::ToHost, from: address, to, rows };
        copy(rig, what, [buffer.memory.clone(), down.clone()]);
        assert!(up.words() == down.words(), "{len} words");
    }
}

fn memory_is_counted(rig: &mut Rig<'_>) {
    let memory = rig.device.inner.backend.memory();
    let info = memory.info().expect("it is known");
    assert!(info.free <= info.total && info.total > 0, "{info:?}");
    // A limit is exact; a GPU's memory, and a host's, are used by others too.
    let Some(limit) = memory.within_reach(0).filter(|_| !rig.device.inner.capabilities.is_polled)
    else {
        return;
    };
    let _buffer = rig.buffer(100);
    let later = memory.info().expect("it is known");
    assert_eq!((later.free, later.total), (info.free - 400, limit));
}

fn memory_is_bounded(rig: &mut Rig<'_>) {
    let memory = rig.device.inner.backend.memory();
    let refused = memory.allocate(1 << 60, Contents::Any);
    assert!(matches!(refused, Err(Error::Memory(MemoryError::OutOfMemory { .. }))), "{refused:?}");
    let most = memory.within_reach(0);
    // All the memory there is, twice in a row, unless it is that of a GPU.
    let bytes = most.map_or(1 << 20, |most| most.min(1 << 20));
    for _ in 0..50 {
        let first = memory.allocate(bytes, Contents::Any).expect("memory");
        // SAFETY: just allocated, and nothing uses it.
        unsafe { memory.fill(first, vec![0xA5; bytes].as_ptr(), bytes) }.expect("filled");
        // SAFETY: as above.
        unsafe { memory.free(first, bytes) };
    }
    let buffer = rig.buffer(bytes / 4);
    assert!(download(rig, &buffer).iter().all(|&word| word == 0), "memory is not zeroed");
}

/// This process stands for the other one.
#[cfg(target_os = "linux")]
fn shared_memory_is_opened(rig: &mut Rig<'_>) {
    use std::os::fd::AsFd;

    use crate::device::{Device, Patience};

    let new = |device: &Device, len| {
        let patience = Patience { timeout: std::time::Duration::ZERO, most: 0 };
        Buffer::<u32>::new(device, len, Contents::Shared, patience, None).expect("memory")
    };
    let device = rig.device;
    let memory = device.inner.backend.memory();
    assert!(rig.buffer(100).memory.shared().is_none(), "it is this process's alone");
    assert!(new(device, 0).memory.shared().is_some(), "empty ones can be passed, too");
    for len in [1, 1000, 1 << 20] {
        // The second of the same size must not find what the first one has left.
        for _ in 0..2 {
            let own = new(device, len);
            assert!(download(rig, &own).iter().all(|&word| word == 0), "{len}: not zeroed");
            let descriptor = own.memory.shared().expect("it is shared");
            let open = || {
                let address = memory.open(descriptor.as_fd(), 4 * len).expect("it is there");
                // SAFETY: just mapped, for this buffer.
                unsafe { Buffer::<u32>::from_parts(device, address, len) }
            };
            let (one, other) = (open(), open());
            let data: Vec<u32> = (0..len as u32).map(|x| x ^ 0x3333_0000).collect();
            let data = Arc::new(data);
            upload(rig, &data, &one);
            assert!(download(rig, &own) == *data && download(rig, &other) == *data, "{len}");
            // It stays as long as it is mapped anywhere.
            drop((own, one));
            assert!(download(rig, &other) == *data, "{len}");
        }
    }
    let file = std::fs::File::open("/dev/null").expect("a file");
    let refused = memory.open(file.as_fd(), 4096);
    assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
}
