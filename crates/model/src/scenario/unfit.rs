//! Policies that a host cannot have.

/// Why a policy cannot run on a host.
#[derive(Clone, Debug)]
pub(crate) struct Unfit {
    /// What is wrong.
    pub(crate) message: String,
    /// What is allowed.
    pub(crate) help: String,
}
