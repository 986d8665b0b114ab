//! Runs a scenario at many points, and searches among them.
//!
//! ```text
//! Sweep (model) + base scenario --job--> Job --design--> point 0, 1, 2, ...
//!                                                          |
//!            engine: all cores, or somebody else's      point: sets -> plans -> repeats -> rows
//!                                                          |
//!                                  dataset: journal --> part-000000.parquet, ... and a manifest
//! ```
//!
//! A point is a function of the sweep's text, the scenario and the point's number: the result does not depend on
//! machine, time or load. The dataset orders points by number. So a sweep that was killed and continued, or that ran on
//! a cluster, has the same bytes as any other.

pub mod capacity;
pub mod columns;
mod columns_kept;
pub mod dataset;
pub mod design;
pub mod engine;
pub mod job;
mod journal;
pub mod manifest;
pub mod map;
pub mod parquet_reader;
mod parquet_writer;
mod part;
pub mod point;
pub mod ratio;
pub mod row;
pub mod slo;
pub mod space;
pub mod stopping_rule;
pub mod tally;
pub mod trial;
pub mod tune;
