//! Policies that are impossible on a host.

/// Why a policy cannot run on a host.
#[derive(Clone, Debug)]
pub(crate) struct PolicyMisfit {
    /// What is wrong.
    pub(crate) message: String,
    /// What is allowed.
    pub(crate) help: String,
}
