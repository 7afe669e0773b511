//! Policies that only configure another one.

/// Implements [`Policy`](super::Policy) for a policy by the policy in one of its fields, under a name of its own.
macro_rules! delegate {
    ($policy:ty, $name:literal, $field:ident) => {
        impl $crate::policy::Policy for $policy {
            fn name(&self) -> &str {
                $name
            }

            fn arrived(&mut self, now: Duration, launch: Arrival) {
                self.$field.arrived(now, launch);
            }

            fn changed(&mut self, now: Duration, launch: Arrival) {
                self.$field.changed(now, launch);
            }

            fn yielded(&mut self, now: Duration, launch: LaunchId) {
                self.$field.yielded(now, launch);
            }

            fn departed(&mut self, now: Duration, launch: LaunchId) {
                self.$field.departed(now, launch);
            }

            fn withdrawn(&mut self, now: Duration, launch: LaunchId) {
                self.$field.withdrawn(now, launch);
            }

            fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
                self.$field.assign(now, device, plan);
            }

            fn goes_by_order(&self) -> bool {
                self.$field.goes_by_order()
            }

            fn may_preempt(
                &self,
                by: $crate::policy::Priority,
                of: $crate::policy::Priority,
            ) -> bool {
                self.$field.may_preempt(by, of)
            }

            fn latency_limit(&self) -> Option<Duration> {
                self.$field.latency_limit()
            }

            fn wake(&self) -> Option<Duration> {
                self.$field.wake()
            }
        }
    };
}

pub(super) use delegate;
