//! Credit1: the rules of Xen, one by one.

mod driver;
mod random;
