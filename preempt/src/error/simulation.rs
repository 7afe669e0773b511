/// A simulation without a result.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A machine or workload that cannot be simulated, or a simulation that did not end.
    #[error("the simulation was given up: {reason}")]
    GivenUp {
        /// What is wrong, and what is allowed.
        reason: String,
    },
}
