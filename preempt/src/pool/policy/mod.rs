//! The policies of a pool.

mod elastic;
mod first_come;
mod in_time;
mod user_facing_first;

pub use elastic::Elastic;
pub use first_come::FirstCome;
pub use in_time::InTime;
pub use user_facing_first::UserFacingFirst;
