//! The digits and the network, which the example and its training program share.

pub mod digits;
pub mod network;
pub mod training;
