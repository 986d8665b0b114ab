//! What happens to threads on this host. It knows threads only, no VM and no plan.
