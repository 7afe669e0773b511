//! What the text of a PTX file says, whatever compiled it, and kernels in it that become preemptible.
//!
//! PTX is the assembly language of NVIDIA's GPUs, which nvcc (`--ptx`), NVRTC and Triton write, and the driver compiles. These are
//! functions from text to text: they need no GPU, no driver and no toolkit, so they serve in a build script or in a test as
//! well. An application that has such kernels gives their text to [`SchedulerBuilder::ptx`](crate::SchedulerBuilder::ptx), and calls
//! nothing of this.
//!
//! [`transform`] puts the body of an entry into the loop over block-tasks that kernels in Rust have
//! ([`preemptible`](preempt_device::preemptible)). Not every kernel gives the same results there: one that waits for what another
//! block writes would wait for ever if that block comes later. So each entry has a [`Verdict`]:
//!
//! | verdict | |
//! | --- | --- |
//! | exact | The body is in the loop as it is. |
//! | by [`Rule`]s | The same results need more: threads that return early have to meet those that go on, asynchronous copies have to end with the block-task, and so on. |
//! | [`Refusal`]s | Nothing shows that the results would be the same. Each says what instruction is the cause, where, and what to do. The kernel runs in the plain form. |
//!
//! What the analysis does not know it refuses.
//!
//! A kernel yields its SMs at the ends of its block-tasks alone, unless it has yield points within their loops
//! ([`Options::yields`]). A block-task is dropped there and runs again from its start. So a second analysis says whether it may be,
//! with the verdicts that kernels in Rust have:
//!
//! | [`Droppable`] | |
//! | --- | --- |
//! | strict | A block-task may be dropped at any time: it reads none of the memory that it writes, and writes the same places again. |
//! | relaxed | It may be dropped until a thread comes to what cannot be done twice, such as an atomic operation. |
//! | never | Nothing shows that it may be, or no loop has a place for a yield point. Here are the reasons, each with the instruction and its place. |
//!
//! Different parameters may be of one memory, as far as the text shows. So a call is launched with yield points if it passes for
//! each parameter what [`YieldingEntry::uses`] says, and without if not.
//!
//! ```
//! use preempt::ptx::{Verdict, transform};
//!
//! let text = "
//!     .version 8.0
//!     .target sm_90
//!     .address_size 64
//!     .visible .entry wait(.param .u64 flag) {
//!         .reg .b32 %r<2>; .reg .b64 %a<2>; .reg .pred %p<2>;
//!         ld.param.u64 %a1, [flag];
//!     AGAIN:
//!         ld.volatile.global.u32 %r1, [%a1];
//!         setp.eq.u32 %p1, %r1, 0;
//!         @%p1 bra AGAIN;
//!         ret;
//!     }
//! ";
//! let transformed = transform(text, &["wait"])?;
//! let Verdict::Refused(reasons) = &transformed.kernels[0].verdict else {
//!     panic!("another block may have to write the flag")
//! };
//! println!("{}", reasons[0]);
//! # Ok::<(), preempt::ptx::TransformError>(())
//! ```
//!
//! The verdict holds for launches without clusters that are not cooperative, as those of a scheduler are, and under the
//! [promise](crate::ForeignKernel::call) of the call. [`Scheduler::verify`](crate::Scheduler::verify) runs a kernel in both forms and
//! compares.

#[doc(inline)]
pub use preempt_ptx_text::{
    Accepted, Droppable, EntryShape, LaunchNeed, Module, Note, Options, Parameter, ParameterUse,
    Place, PreemptibleEntry, PtxError, Refusal, Rule, TransformError, Transformed,
    TransformedKernel, Verdict, YieldingEntry, read, transform, transform_with,
};
