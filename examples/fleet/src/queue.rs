//! The queue: a stream of tasks, a stream of results, and what of its acknowledgements gives each task one answer.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, RetentionPolicy, Stream};
use async_nats::jetstream::{self, Message};
use futures_util::StreamExt;
use preempt::pool::Class;
use serde::Serialize;

/// Time without a word of its process after which a task is delivered again: how long a lost task waits, against how long a
/// process may be late.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// Time between two words of a process that a task is under way; a quarter of [`ACK_WAIT`], so that some may be lost.
pub const PROGRESS: Duration = Duration::from_millis(500);

/// A task that ends each of its processes must not end them for ever.
const MOST_DELIVERIES: i64 = 10;

/// Tasks of one class under way in all processes.
const MOST_UNDER_WAY: i64 = 64;

/// Time for which a second message of an id is dropped; longer than all deliveries of a task take.
const WINDOW: Duration = Duration::from_secs(600);

/// Time, at most, that one question for a task stays with the server.
const PULL: Duration = Duration::from_secs(5);

/// The subject of results, and the name of their stream.
const RESULTS: &str = "results";

/// A connection to the queue, with its streams.
pub struct Queue {
    context: jetstream::Context,
    pub tasks: Stream,
    pub results: Stream,
}

impl Queue {
    /// Connects, and creates the streams that are not there.
    pub async fn connect() -> Result<Queue> {
        let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".into());
        let client = async_nats::connect(&url).await;
        let client = client.with_context(|| {
            format!("no queue at {url}: start `nats-server -js`, or set NATS_URL")
        })?;
        let context = jetstream::new(client);
        let create = async |name: &str, subject: &str, retention| {
            let (name, subjects) = (name.into(), vec![subject.into()]);
            let duplicate_window = WINDOW;
            let config =
                Config { name, subjects, retention, duplicate_window, ..Config::default() };
            let stream = context.get_or_create_stream(config).await;
            stream.context("the server has no stream: start it with JetStream (`nats-server -js`)")
        };
        // A task leaves its stream when it is acknowledged. Files are the default storage.
        let tasks = create("tasks", "tasks.*", RetentionPolicy::WorkQueue).await?;
        let results = create(RESULTS, RESULTS, RetentionPolicy::Limits).await?;
        Ok(Queue { context, tasks, results })
    }

    /// Publishes a task, or says that one of this id was there before.
    pub async fn submit(&self, class: Class, id: u32, task: &impl Serialize) -> Result<IsNew> {
        self.publish(subject(class), id, task).await
    }

    /// Publishes a result, or says that one of this id was there before.
    pub async fn answer(&self, id: u32, answer: &impl Serialize) -> Result<IsNew> {
        self.publish(RESULTS, id, answer).await
    }

    async fn publish(
        &self,
        subject: &'static str,
        id: u32,
        message: &impl Serialize,
    ) -> Result<IsNew> {
        let payload = serde_json::to_vec(message).context("a message that is no JSON")?;
        // Sent as `Nats-Msg-Id`, by which the stream drops a second message.
        let message = PublishMessage::build().payload(payload.into()).message_id(id.to_string());
        let sent = self.context.send_publish(subject, message).await;
        let stored = sent.with_context(|| format!("{subject} {id} was not sent"))?.await;
        let stored = stored
            .with_context(|| format!("{subject} {id} may not be stored: see the server's log"))?;
        Ok(IsNew(!stored.duplicate))
    }

    /// The tasks of a class, which all processes share. Users' tasks have a consumer of their own, so that they wait behind
    /// no batch tasks in the queue either.
    pub async fn tasks_of(&self, class: Class) -> Result<Tasks> {
        let name = match class {
            Class::UserFacing => "user",
            Class::Batch => "batch",
        };
        let config = pull::Config {
            durable_name: Some(name.into()),
            filter_subject: subject(class).into(),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: MOST_UNDER_WAY,
            max_deliver: MOST_DELIVERIES,
            ..Default::default()
        };
        let consumer = self.tasks.get_or_create_consumer(name, config).await;
        Ok(Tasks(consumer.with_context(|| format!("no consumer `{name}` of the tasks"))?))
    }

    /// All results, from the first on, and those that come.
    pub async fn answers(&self) -> Result<pull::Stream> {
        let config = pull::Config { ack_policy: AckPolicy::None, ..Default::default() };
        let consumer = self.results.create_consumer(config).await;
        let consumer = consumer.context("no consumer of the results")?;
        consumer.messages().await.context("the results cannot be read")
    }
}

fn subject(class: Class) -> &'static str {
    match class {
        Class::UserFacing => "tasks.user",
        Class::Batch => "tasks.batch",
    }
}

/// Whether a message was stored, or is the second one of its id and was dropped.
#[must_use]
pub struct IsNew(pub bool);

/// The tasks of a class.
pub struct Tasks(PullConsumer);

impl Tasks {
    /// The next task, for a process that has room for it. One at a time: a task that waits in a process is late there, while
    /// another process may have room.
    pub async fn next(&self) -> Result<Message> {
        loop {
            let pulled = self.0.batch().max_messages(1).expires(PULL).messages().await;
            let next = pulled.context("the queue gives no tasks")?.next().await;
            match next.transpose() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(error) => return Err(client_error(error).context("the queue gives no tasks")),
            }
        }
    }
}

/// An error of the client.
pub fn client_error(error: async_nats::Error) -> anyhow::Error {
    anyhow::anyhow!(error)
}
