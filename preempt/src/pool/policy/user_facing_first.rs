//! User-facing tasks first, on all devices.

use crate::pool::dispatch::{PoolPlan, PoolPolicy};
use crate::pool::terms::Class;

/// TReM's `Priority`: user-facing tasks get all devices, and batch tasks what is left. As many batch tasks are stopped as
/// user-facing ones wait, those first that started last, since they lose the least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserFacingFirst;

impl PoolPolicy for UserFacingFirst {
    fn decide(&mut self, plan: &mut PoolPlan<'_>) {
        plan.serve(Class::UserFacing, plan.devices());
        let missing = plan.waiting(Class::UserFacing).saturating_sub(plan.leaving());
        let victims: Vec<_> = plan.victims().take(missing).collect();
        for victim in victims {
            plan.stop(victim.device);
        }
        plan.serve(Class::Batch, plan.devices());
    }
}
