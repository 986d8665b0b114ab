//! Experiments on the simulator.

mod common;
mod coverage;
mod experiment;
mod governors;
mod reproduce;
mod scenarios;
mod storms;
mod verdicts;
