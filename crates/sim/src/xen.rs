//! What only the Xen study needs: storms of VMs, who ran when on one pCPU, fairness between domains, and
//! ratelimits that a policy sets.

pub(crate) mod fairness;
pub(crate) mod intervals;
pub(crate) mod ratelimit_driver;
pub(crate) mod storm;
mod toolstack;
