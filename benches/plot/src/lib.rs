//! Results as pictures, and beside the papers' figures; both from the JSON, so that they can be made again.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `chart` | bars and lines as SVG |
//! | `pictures` | which bars and lines each suite has |
//! | `papers` | the papers' figures, and the table with ours beside them |

pub mod chart;
pub mod papers;
mod pictures;

pub use pictures::{ensure_picture, picture};
