//! What the programs' loaders share.

use libbpf_rs::{Error, MapCore as _, MapHandle, Object};

/// A map of a loaded object.
///
/// # Errors
///
/// There is none of this name.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, Error> {
    // Maps of variables are called by the beginning of the object's name.
    let found = object.maps().find(|map| map.name().to_string_lossy().ends_with(name));
    found.map_or_else(
        || Err(Error::from_raw_os_error(libc::ENOENT)),
        |map| MapHandle::try_from(&map),
    )
}
