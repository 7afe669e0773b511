//! A service on tokio: 200 requests on one stream, behind a launch that never ends and is given up.
//!
//! One thread runs all tasks, and a timer beside them. No call blocks that thread: a request waits for room in the
//! stream as a future, and so does it for its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use preempt::{Error, Room, Scheduler, Stream};
use preempt_device::prelude::*;
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The answer to a request.
#[preemptible(block = 1)]
fn sum_to(n: u32, out: SliceMut<u32>) {
    // SAFETY: one thread writes the only element.
    unsafe { out.write(0, (1..=n).sum()) }
}

/// Ends when it is cancelled, at its yield point.
#[preemptible(block = 1)]
fn endless() {
    loop {
        yield_point!();
    }
}

/// Requests; a stream has room for 64 operations.
const REQUESTS: u32 = 200;

/// Milliseconds between two ticks of the timer.
const TICK: Duration = Duration::from_millis(5);

struct Service {
    scheduler: Scheduler,
    stream: Stream,
    /// Requests that have asked for room, and those among them that found none.
    asked: AtomicU32,
    waited: AtomicU32,
}

impl Service {
    fn new() -> Result<Arc<Service>, Error> {
        let scheduler = Scheduler::builder().build()?;
        let stream = scheduler.stream(0);
        let (asked, waited) = Default::default();
        Ok(Arc::new(Service { scheduler, stream, asked, waited }))
    }

    /// Room for a request's launch.
    async fn room(&self) -> Room {
        self.asked.fetch_add(1, Relaxed);
        match self.stream.try_room() {
            Some(room) => room,
            None => {
                self.waited.fetch_add(1, Relaxed);
                self.stream.room().await
            }
        }
    }

    async fn answer(&self, n: u32) -> Result<u32, Error> {
        let mut out = self.scheduler.zeroed(1)?;
        // What goes wrong with the launch is reported by the download.
        self.room().await.launch(sum_to(n, &mut out).grid(1))?.detach();
        Ok(self.stream.room().await.download(&out)?.await?[0])
    }

    /// Answers all requests, behind a launch that is given up when `patience` ends.
    async fn serve(self: &Arc<Self>, patience: impl Future<Output = ()>) -> Result<Vec<u32>> {
        let launch = self.stream.room().await.launch(endless().grid(1))?;
        let mut requests = JoinSet::new();
        for n in 0..REQUESTS {
            let service = self.clone();
            requests.spawn(async move { Ok::<_, Error>((n, service.answer(n).await?)) });
        }
        select! {
            // The guard is dropped with the branch, and cancels the launch.
            ended = launch.cancel_on_drop() => anyhow::bail!("the endless launch ended: {ended:?}"),
            () = patience => {}
        }
        let mut answers = vec![0; REQUESTS as usize];
        while let Some(answered) = requests.join_next().await {
            let (n, answer) = answered??;
            answers[n as usize] = answer;
        }
        Ok(answers)
    }
}

/// Ticks for ever, and keeps the longest time that a tick was late.
async fn tick(latest: &mut Duration) -> Result<()> {
    loop {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due).await;
        *latest = (*latest).max(due.elapsed());
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let service = Service::new()?;
    let mut latest = Duration::ZERO;
    let answers = select! {
        answers = service.serve(sleep(Duration::from_millis(50))) => answers?,
        ticked = tick(&mut latest) => return ticked,
    };
    let waited = service.waited.load(Relaxed);
    println!("{} answers, the last one {}", answers.len(), answers[answers.len() - 1]);
    println!("{waited} requests waited for room; a timer of {TICK:?} was at most {latest:?} late");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The launch at the head of the stream is given up when all requests have asked for room, by a task of the executor
    /// that the requests run on: had one of them blocked it, nothing would ever be given up.
    #[tokio::test]
    async fn requests_wait_for_room_and_block_nothing() {
        let service = Service::new().expect("a scheduler");
        let all_asked = async {
            while service.asked.load(Relaxed) < REQUESTS {
                tokio::task::yield_now().await;
            }
        };
        let answers = service.serve(all_asked).await.expect("all are answered");
        assert!(answers.iter().enumerate().all(|(n, &sum)| sum as usize == n * (n + 1) / 2));
        // The endless launch has one of 64 places, and a request takes two.
        assert_eq!(service.waited.load(Relaxed), REQUESTS - 32);
        let total = service.scheduler.stats().total;
        assert_eq!((total.done, total.cancelled), (REQUESTS.into(), 1));
    }
}
