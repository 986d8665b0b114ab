//! Run queues and scheduling levels: RT, CFS, EEVDF, one code for host and guest
#![no_std]
extern crate alloc;

pub mod config;
