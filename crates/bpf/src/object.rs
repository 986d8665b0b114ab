//! Shared by the loaders of the programs.

use libbpf_rs::{Error, MapCore as _, MapHandle, Object, ProgramType};
use libbpf_sys::{BPF_FUNC_probe_read_kernel, BPF_FUNC_probe_write_user, bpf_func_id};

use crate::Unsupported;

/// A map of a loaded object.
///
/// # Errors
///
/// No map has this name.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, Error> {
    // Names of maps for variables have the beginning of the object's name as prefix.
    let found = object.maps().find(|map| map.name().to_string_lossy().ends_with(name));
    found.map_or_else(
        || Err(Error::from_raw_os_error(libc::ENOENT)),
        |map| MapHandle::try_from(&map),
    )
}

/// Whether thread ids in the programs are the same as in this process's PID namespace.
pub(crate) fn know_threads() -> Result<(), Unsupported> {
    vcoop_threads::numbers_of_events()
        .map_err(|(what, remedy)| Unsupported { what: what.to_owned(), remedy })
}

/// Whether programs may read kernel memory, which a locked-down kernel forbids.
pub(crate) fn may_read() -> Result<(), Unsupported> {
    may(BPF_FUNC_probe_read_kernel).map_err(|()| Unsupported {
        what: "the kernel is locked down, and lets no BPF program read its memory".to_owned(),
        remedy: "boot with lockdown=integrity, or without lockdown=",
    })
}

/// Whether programs may write to a process's memory, which a locked-down kernel forbids.
pub(crate) fn may_write() -> Result<(), Unsupported> {
    may(BPF_FUNC_probe_write_user).map_err(|()| Unsupported {
        what: "the kernel is locked down, and lets no BPF program write into a VMM's memory, where a guest is \
               answered"
            .to_owned(),
        remedy: "boot without lockdown=, or another means than `ext`",
    })
}

/// Whether programs may call a helper of the kernel. If that cannot be determined, the programs are tried.
fn may(helper: bpf_func_id) -> Result<(), ()> {
    match ProgramType::Kprobe.is_helper_supported(helper) {
        Ok(false) => Err(()),
        _ => Ok(()),
    }
}
