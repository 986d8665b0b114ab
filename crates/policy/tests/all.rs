//! The policies from outside.

mod c_half;
mod conformance;
mod driver;
mod govern;
mod loom;
mod polling;
mod properties;
mod race;
mod ratelimit;
