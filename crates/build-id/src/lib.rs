//! Which build this is.
//!
//! A crate of its own, so that a new commit compiles again what depends on this name and nothing
//! else: the command and the Python package. They hand the name down to what writes it into files.

/// Version and sources of this build: `0.1.0 (0123456789ab)` with the commit;
/// `0.1.0 (0123456789ab-dirty, sources 0123456789abcdef)` where the sources differ from it;
/// `0.1.0 (sources 0123456789abcdef)` where they are in no git repository.
///
/// Two programs with the same name have the same simulator in them: the command and the Python
/// package agree.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("VCOOP_SOURCES"), ")");

#[cfg(test)]
mod sources;
