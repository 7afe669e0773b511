//! Pools as the workers of a queue: a task of a process that dies is delivered to another one.
//!
//! A pool has the devices of one process. Which process has a task, and what becomes of it when that process is lost, is the
//! queue's business: NATS JetStream. The script `run` plays it on one machine.

use anyhow::{Context, Result, bail};

mod collect;
mod queue;
mod serve;
mod submit;
mod work;

const USAGE: &str = "usage: fleet submit N | fleet serve NAME | fleet collect N
The queue is the one at NATS_URL, or else at nats://127.0.0.1:4222.";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["submit", tasks] => submit::submit(number(tasks)?).await,
        ["serve", name] => serve::serve(name).await,
        ["collect", tasks] => collect::collect(number(tasks)?).await,
        _ => bail!(USAGE),
    }
}

fn number(argument: &str) -> Result<u32> {
    argument.parse().with_context(|| format!("`{argument}` is no number of tasks\n{USAGE}"))
}
