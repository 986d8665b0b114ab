//! vCPU-scheduling policies as sans-I/O state machines, shared by simulator and lab
#![no_std]

pub mod config;
