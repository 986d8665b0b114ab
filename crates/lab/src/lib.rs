//! Runs plans on a backend, repeats, compares, reproduces
