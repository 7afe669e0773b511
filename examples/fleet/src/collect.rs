//! Reads results, and checks that each task has one and that it is right.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::consumer::pull;
use futures_util::StreamExt;
use tokio::time::{Instant, sleep, timeout_at};

use crate::queue::Queue;
use crate::work::{Answer, Parameters};

/// Time, at most, that results are awaited: many times what the tasks of `run` take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two questions to the queue whether it has tasks left.
const POLL: Duration = Duration::from_millis(100);

/// What was read.
#[derive(Default)]
struct Read {
    /// Of each id, how many results there are.
    results: BTreeMap<u32, u32>,
    served: BTreeMap<String, u32>,
    wrong: u32,
    redelivered: u32,
    messages: u64,
}

/// Reads results until those of the ids from 1 to `tasks` are there.
pub async fn collect(tasks: u32) -> Result<()> {
    let ends = Instant::now() + PATIENCE;
    let queue = Queue::connect().await?;
    let mut answers = queue.answers().await?;
    let mut read = Read::default();
    while read.results.len() < tasks as usize && read.next(&mut answers, tasks, ends).await? {}
    // A task that is not acknowledged may yet have a second result.
    while queue.tasks.get_info().await.context("no answer of the tasks' stream")?.state.messages > 0
        && Instant::now() < ends
    {
        sleep(POLL).await;
    }
    let all = queue.results.get_info().await.context("no answer of the results' stream")?;
    while read.messages < all.state.messages && read.next(&mut answers, tasks, ends).await? {}
    read.check(tasks)
}

impl Read {
    /// Reads a result; `false` if none came in time.
    async fn next(
        &mut self,
        answers: &mut pull::Stream,
        tasks: u32,
        ends: Instant,
    ) -> Result<bool> {
        let Ok(next) = timeout_at(ends, answers.next()).await else { return Ok(false) };
        let message = next.context("the stream of results ended: collect them again")?;
        let message = message.context("a result cannot be read: collect them again")?;
        self.messages += 1;
        let answer: Answer = serde_json::from_slice(&message.payload)
            .context("a message of the stream of results is none: use a server of its own")?;
        // Others are of an earlier submission of more tasks.
        if (1..=tasks).contains(&answer.id) {
            let (_, parameters) = Parameters::of(answer.id);
            self.wrong += u32::from(answer.sum != parameters.expected());
            self.redelivered += u32::from(answer.delivery > 1);
            *self.results.entry(answer.id).or_default() += 1;
            *self.served.entry(answer.process).or_default() += 1;
        }
        Ok(true)
    }

    /// Says what was read, and whether it is as it should be.
    fn check(&self, tasks: u32) -> Result<()> {
        let Read { wrong, redelivered, .. } = self;
        let results: u32 = self.results.values().sum();
        let lost = tasks - self.results.len() as u32;
        let twice = self.results.values().filter(|&&results| results > 1).count();
        let served = self.served.iter().map(|(process, results)| format!("{process}: {results}"));
        let served = served.collect::<Vec<_>>().join(", ");
        println!(
            "{tasks} tasks, {results} results, {lost} lost, {twice} twice, {wrong} wrong, \
             {redelivered} redelivered, served by {{{served}}}"
        );
        ensure!(
            (lost, twice, *wrong) == (0, 0, 0),
            "results are lost, doubled or wrong: see what the processes say"
        );
        Ok(())
    }
}
