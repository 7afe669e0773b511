//! Results of measurements: written down as tables, drawn as pictures, and set beside the papers' figures.
//! Pictures and comparisons are made from the JSON, so that they can be made again.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `table` | tables for people, percentiles, how times are told |
//! | `chart` | bars and lines as SVG |
//! | `pictures` | which bars and lines each suite has |
//! | `papers` | the papers' figures, and the table with ours beside them |
//! | `pages` | `benches/RESULTS.md`, the figures of the README, and the pictures in `benches/results` |

mod chart;
pub mod pages;
pub mod papers;
mod pictures;
mod table;

pub use pictures::{ensure_picture, picture};
pub use table::{digits, microseconds, percentile, table, time};
