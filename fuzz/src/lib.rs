//! What fuzz targets share. Each example of this package is a target.

use std::fmt::Display;

/// What is refused has a message.
pub fn refused(error: impl Display) {
    assert!(!error.to_string().is_empty(), "a refusal without a message");
}
