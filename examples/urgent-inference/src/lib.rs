//! What the example and its training program share: the digits and the network.

pub mod digits;
pub mod network;
pub mod training;
