//! What loom plays of the host library: these files of it alone, since to build all of it takes minutes, and the models a second.

#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of what is in the files")]

#[path = "../../../preempt/src/device/cuda/proxy/carried.rs"]
mod carried;
#[path = "."]
mod scheduler {
    #[path = "../../../preempt/src/scheduler/runtime/combiner.rs"]
    mod combiner;
}
