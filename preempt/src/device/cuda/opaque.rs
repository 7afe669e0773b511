//! Streams for opaque work, and when the work in them is done.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::context::Context;
use super::copies::Shared;
use super::lock;
use super::streams::{Stream, TrackedStream};
use crate::device::{DeviceReport, OpaqueWork, RawStream};
use crate::error::{Error, caught};
use crate::vocabulary::OpKey;

/// Pieces of opaque work that can be on the GPU at the same time. Each takes one of its few hardware queues while it
/// waits for room.
pub(super) const STREAMS: usize = 2;

#[derive(Debug)]
pub(super) struct OpaqueStreams {
    shared: Arc<Shared>,
    streams: [OpaqueStream; STREAMS],
}

#[derive(Debug)]
struct OpaqueStream {
    line: TrackedStream,
    under_way: Mutex<VecDeque<UnderWay>>,
    /// The number of the last work done when reports were last taken.
    seen: AtomicU64,
}

#[derive(Debug)]
struct UnderWay {
    op: OpKey,
    /// The work is done when the line has done the work of this number.
    number: u64,
    /// The result of the call on the host.
    result: Result<(), String>,
}

impl OpaqueStream {
    fn new(line: TrackedStream) -> OpaqueStream {
        let seen = AtomicU64::new(line.done());
        OpaqueStream { line, under_way: Mutex::default(), seen }
    }

    fn len(&self) -> usize {
        lock(&self.under_way).len()
    }
}

impl OpaqueStreams {
    pub fn new(shared: &Arc<Shared>, lines: [TrackedStream; STREAMS]) -> OpaqueStreams {
        OpaqueStreams { shared: shared.clone(), streams: lines.map(OpaqueStream::new) }
    }

    fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Calls `work`. Its operation is reported as over when everything that it has put into the stream is done. One
    /// thread calls this.
    pub fn run(&self, op: OpKey, work: OpaqueWork) {
        let entered = match self.context().enter() {
            Ok(entered) => entered,
            Err(error) => {
                let _ = caught(|| drop(work));
                return self.shared.end(op, Err(error));
            }
        };
        let Some(stream) = self.streams.iter().min_by_key(|stream| stream.len()) else { return };
        let result = work(RawStream::new(stream.line.stream().raw().cast()));
        // The work may have made another context current.
        let mut under_way = lock(&stream.under_way);
        let context = self.context();
        // Without a number nothing would show when the work in the stream is over.
        let number =
            context.must(|| context.enter().and_then(|_entered| stream.line.issue(|_| Ok(()))));
        // The loss of the context is reported for all operations together.
        if let Ok(number) = number {
            under_way.push_back(UnderWay { op, number, result });
        }
        drop((under_way, entered));
        self.shared.watch.stir();
    }

    /// Whether there is something to report.
    pub fn has_news(&self) -> bool {
        // Relaxed: a thread that sees a difference looks under the lock.
        self.streams.iter().any(|stream| stream.line.done() != stream.seen.load(Ordering::Relaxed))
    }

    /// Whether something may be on the device.
    pub fn has_under_way(&self) -> bool {
        self.streams.iter().any(|stream| stream.len() > 0)
    }

    /// Appends reports of what is done.
    pub fn take_reports(&self, reports: &mut Vec<DeviceReport>) {
        for OpaqueStream { line, under_way, seen } in &self.streams {
            let done = line.done();
            if done == seen.load(Ordering::Relaxed) {
                continue;
            }
            let mut under_way = lock(under_way);
            while under_way.front().is_some_and(|work| work.number <= done) {
                let Some(UnderWay { op, result, .. }) = under_way.pop_front() else { break };
                reports.extend(result.err().map(|message| DeviceReport::Fault(op, message.into())));
                reports.push(DeviceReport::CopyDone(op));
            }
            seen.store(done, Ordering::Relaxed);
        }
    }

    /// Forgets all work: the context is lost.
    pub fn forget(&self) {
        self.streams.iter().for_each(|stream| lock(&stream.under_way).clear());
    }

    /// The streams for opaque work.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter().map(|stream| stream.line.stream())
    }

    /// Finds out whether the context is lost, while work is under way.
    pub fn check(&self) -> Result<(), Error> {
        let mut busy = self.streams.iter().filter(|stream| stream.len() > 0);
        busy.try_for_each(|stream| stream.line.stream().is_idle().map(drop))
    }
}
