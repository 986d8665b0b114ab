//! Credit1: the rules of Xen, one by one.

mod driver;
mod patches;
mod random;
mod rules;
mod shares;
