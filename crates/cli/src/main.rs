//! The vcoop command
fn main() {}
