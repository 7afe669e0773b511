//! The oldest first.

use crate::pool::dispatch::{PoolPlan, PoolPolicy};
use crate::pool::terms::Class;

/// Starts the oldest task, whatever it is, and stops none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FirstCome;

impl PoolPolicy for FirstCome {
    fn decide(&mut self, plan: &mut PoolPlan<'_>) {
        while let Some(device) = plan.idle() {
            let oldest = [Class::UserFacing, Class::Batch]
                .into_iter()
                .filter_map(|class| Some((plan.oldest(class)?, class)))
                .min();
            let Some((_, class)) = oldest else { return };
            if !plan.start(class, device) {
                return;
            }
        }
    }
}
