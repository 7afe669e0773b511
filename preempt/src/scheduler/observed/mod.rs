//! What is observed of launches: counts, a timeline, and events for other crates.

pub(super) mod accounts;
pub mod stats;
mod telemetry;
pub(super) mod trace;
