//! What happens to threads on this host. It knows threads only, no VM and no plan.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod trace;
