//! The two-level vCPU scheduling simulator
