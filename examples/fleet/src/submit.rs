//! Publishes tasks.

use anyhow::Result;

use crate::queue::{IsNew, Queue};
use crate::work::Parameters;

/// Publishes the tasks with the ids from 1 to `tasks`. Those that are known since an earlier attempt are dropped.
pub async fn submit(tasks: u32) -> Result<()> {
    let queue = Queue::connect().await?;
    let mut known = 0;
    for id in 1..=tasks {
        let (class, parameters) = Parameters::of(id);
        let IsNew(is_new) = queue.submit(class, id, &parameters).await?;
        known += u32::from(!is_new);
    }
    println!("{} tasks submitted, {known} were there before", tasks - known);
    Ok(())
}
