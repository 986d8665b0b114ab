//! Parts only for the Xen study: storms of VMs, intervals on one pCPU, fairness between domains, and ratelimits set by
//! a policy.

pub(crate) mod fairness;
pub(crate) mod intervals;
pub(crate) mod ratelimit_driver;
pub(crate) mod storm;
mod toolstack;
