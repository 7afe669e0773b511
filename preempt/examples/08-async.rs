//! Handles are futures, for any executor.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self as threads, Thread};

use preempt::prelude::*;

#[preemptible(block = 32)]
fn square(x: PerThread<u32>) {
    if let Some(own) = x.own() {
        own.set(own.get() * own.get());
    }
}

/// What a service does for a request. It blocks no thread: `room` waits until the stream takes another operation.
async fn answer(stream: &Stream, mut x: Buffer<u32>) -> Result<Vec<u32>, preempt::Error> {
    let launch = stream.room().await.launch(square(&mut x).threads(8))?;
    // If this future is dropped before the launch has ended, as by a timeout, the launch is cancelled.
    launch.cancel_on_drop().await?;
    stream.room().await.download(&x)?.await
}

fn main() -> Result<(), preempt::Error> {
    let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
    let stream = scheduler.stream(0);
    let x = scheduler.buffer(&[1, 2, 3, 4, 5, 6, 7, 8])?;
    let squares = block_on(answer(&stream, x))?;
    println!("{squares:?}");
    assert_eq!(squares, [1, 4, 9, 16, 25, 36, 49, 64]);
    Ok(())
}

/// The smallest executor: this thread sleeps until the future is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(threads::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        threads::park();
    }
}
