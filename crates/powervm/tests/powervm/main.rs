//! A shared processor pool.

mod driver;
mod promises;
mod random;
mod rules;
