//! A process with a pool, which takes tasks from the queue.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use async_nats::jetstream::{AckKind, Message};
use preempt::pool::{Application, Class, Pool, TaskHandle};
use preempt::{CpuLayout, Device};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::queue::{IsNew, PROGRESS, Queue, client_error};
use crate::work::{Answer, Parameters};

/// Devices of the pool.
const DEVICES: usize = 2;

/// Tasks of one class that a process takes at once: one runs on each device, and another waits to follow it.
const ROOM: usize = 2 * DEVICES;

struct Server {
    name: String,
    queue: Queue,
    answers: Cell<u32>,
    dropped: Cell<u32>,
}

/// Serves tasks until the process gets SIGTERM. Tasks that are under way then are delivered to others, as after a SIGKILL.
pub async fn serve(name: &str) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("SIGTERM cannot be awaited")?;
    let mut builder = Pool::builder();
    for _ in 0..DEVICES {
        builder = builder.device(Device::cpu_with(CpuLayout::sms(2))?);
    }
    let pool = builder.build().context("no pool")?;
    let [user, batch] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let queue = Queue::connect().await?;
    let (answers, dropped) = Default::default();
    let server = Rc::new(Server { name: name.into(), queue, answers, dropped });
    let serve = async {
        let ended = tokio::select! {
            ended = server.serve(user) => ended,
            ended = server.serve(batch) => ended,
            _ = terminated.recv() => return Ok(()),
        };
        ended.map(|never| match never {})
    };
    LocalSet::new().run_until(serve).await?;
    let (answers, dropped) = (server.answers.get(), server.dropped.get());
    let stats = pool.stats();
    println!(
        "process {name}: {answers} answers, and {dropped} that the queue had before; \
         {} tasks of the pool, {} yields, {} revocations",
        stats.finished, stats.yields, stats.revocations
    );
    Ok(())
}

impl Server {
    /// Takes tasks of a class as long as the pool and the queue are there.
    async fn serve(self: &Rc<Self>, application: Application) -> Result<Infallible> {
        let tasks = self.queue.tasks_of(application.class()).await?;
        let room = Arc::new(Semaphore::new(ROOM));
        loop {
            // Before a task is pulled: what waits here is under way for the queue.
            let own = room.clone().acquire_owned().await?;
            let message = tasks.next().await?;
            let parameters = match Parameters::read(&message.payload) {
                Ok(parameters) => parameters,
                Err(error) => {
                    eprintln!("{}: {error:#}", self.name);
                    // It would be no task in another process either.
                    message.ack_with(AckKind::Term).await.map_err(client_error)?;
                    continue;
                }
            };
            // A pool without devices refuses tasks. The process ends then: it would take tasks from those with devices.
            let handle =
                application.submit(&parameters.task()).context("the pool takes no task")?;
            println!("begun {}", parameters.id);
            let server = self.clone();
            spawn_local(async move {
                // A task that is not acknowledged is delivered again. So an error needs no more than to be told.
                match server.finish(&message, parameters, handle).await {
                    Ok(()) => println!("done {}", parameters.id),
                    Err(error) => eprintln!("{}: task {}: {error:#}", server.name, parameters.id),
                }
                drop(own);
            });
        }
    }

    /// Awaits a task, publishes its result, and acknowledges it: in this order, a process may die between any two.
    async fn finish(
        &self,
        message: &Message,
        Parameters { id, .. }: Parameters,
        handle: TaskHandle<u32>,
    ) -> Result<()> {
        let delivery = message.info().map_err(client_error)?.delivered;
        let mut answered = pin!(async {
            let sum = handle.await?;
            let answer = Answer { id, sum, process: self.name.clone(), delivery };
            self.queue.answer(id, &answer).await
        });
        let IsNew(is_new) = loop {
            match timeout(PROGRESS, &mut answered).await {
                Ok(answered) => break answered?,
                // The client connects again by itself. What is lost until then costs at most another delivery.
                Err(_) => drop(message.ack_with(AckKind::Progress).await),
            }
        };
        let count = if is_new { &self.answers } else { &self.dropped };
        count.set(count.get() + 1);
        // With a plain acknowledgement, this process would not hear that it was lost and that the task is delivered again.
        message.double_ack().await.map_err(client_error).context("it was not acknowledged")
    }
}
