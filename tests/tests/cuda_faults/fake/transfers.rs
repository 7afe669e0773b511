//! Copies and fills on the fake driver.

use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys;

use super::memory::{Kind, sample, state};
use super::{Code, FakeStream, INVALID_VALUE};

/// Where the host's sides of copies start, in the order of the calls.
static HOST_SIDES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Where the host's sides of the copies since the last call start.
pub fn host_sides() -> Vec<usize> {
    std::mem::take(&mut *HOST_SIDES.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note_sides(sides: [(usize, Kind); 2]) {
    let of_host = sides.into_iter().filter(|(_, kind)| *kind == Kind::Pinned);
    let mut known = HOST_SIDES.lock().unwrap_or_else(PoisonError::into_inner);
    known.extend(of_host.map(|(start, _)| start));
}

impl FakeStream {
    pub(super) fn copy(
        &self,
        what: &'static str,
        (to, to_kind): (usize, Kind),
        (from, from_kind): (usize, Kind),
        bytes: usize,
    ) -> Code {
        note_sides([(to, to_kind), (from, from_kind)]);
        let uses = vec![
            (to..to + bytes, Some(to_kind), true),
            (from..from + bytes, Some(from_kind), false),
        ];
        let is_watched = from_kind == Kind::Pinned && state().holds(&uses[1].0).is_some();
        let queued = is_watched.then(|| sample(from, bytes));
        if bytes > 1 << 20 {
            // Longer than the host takes to copy the next piece, so that a piece is always under way.
            self.put(|| thread::sleep(Duration::from_millis(2)));
        }
        self.put_access(what, uses, move |state| {
            if queued.is_some_and(|queued| queued != sample(from, bytes)) {
                state.violation(format!("{what}: the host changed what was being copied"));
            }
            state.copy(to, from, bytes);
        })
    }

    pub(super) fn copy_rows(
        &self,
        (to, to_kind): (usize, Kind),
        (from, from_kind): (usize, Kind),
        [to_pitch, from_pitch]: [usize; 2],
        (width, height): (usize, usize),
    ) -> Code {
        note_sides([(to, to_kind), (from, from_kind)]);
        let rows = |start: usize, pitch: usize| {
            (0..height).map(move |row| start + row * pitch..start + row * pitch + width)
        };
        let written = rows(to, to_pitch).map(|range| (range, Some(to_kind), true));
        let read = rows(from, from_pitch).map(|range| (range, Some(from_kind), false));
        let uses = written.chain(read).collect();
        self.put_access("cuMemcpy2DAsync", uses, move |_| {
            for row in 0..height {
                let (from, to) = (from + row * from_pitch, to + row * to_pitch);
                // SAFETY: both were looked at, and do not overlap.
                unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, width) };
            }
        })
    }

    /// Sets memory to a value.
    pub(super) fn set<T: Copy + Send + 'static>(
        &self,
        what: &'static str,
        address: sys::CUdeviceptr,
        value: T,
        times: usize,
    ) -> Code {
        let start = address as usize;
        if !start.is_multiple_of(size_of::<T>()) {
            return INVALID_VALUE;
        }
        let uses = vec![(start..start + times * size_of::<T>(), Some(Kind::Device), true)];
        self.put_access(what, uses, move |_| {
            for at in 0..times {
                // SAFETY: it was looked at, and is aligned.
                unsafe { (start as *mut T).add(at).write(value) };
            }
        })
    }
}
