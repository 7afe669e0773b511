//! Estimates of launches: how long they take, and how long they take to stop.

pub(super) mod estimates;
pub(super) mod forecast;
mod mean;
mod profile;
