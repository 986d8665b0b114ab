//! The process at the other end of a socket.
#![allow(unsafe_code, reason = "getsockopt has no safe wrapper that lets a process have no number")]

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd as _};

/// Who has connected to a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process; `None`: it has no number in this process's PID namespace.
    pub pid: Option<NonZeroU32>,
    /// Its user.
    pub user: u32,
}

impl Peer {
    /// The peer of a Unix socket that is connected.
    ///
    /// # Errors
    ///
    /// It is no such socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `who` has room for `size` bytes, and any bytes are valid for it.
        let rc = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &raw mut size,
            )
        };
        if rc == 0 { Ok(Self::from(who)) } else { Err(io::Error::last_os_error()) }
    }
}

impl From<libc::ucred> for Peer {
    fn from(who: libc::ucred) -> Self {
        Self { pid: NonZeroU32::new(who.pid.cast_unsigned()), user: who.uid }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::Peer;

    #[test]
    fn a_peer_has_a_number_unless_it_is_of_another_pid_namespace() {
        let (one, _other) = UnixStream::pair().unwrap();
        let me = Peer::of(&one).unwrap();
        assert_eq!(me.pid.map(u32::from), Some(std::process::id()));
        let unseen = Peer::from(libc::ucred { pid: 0, uid: 7, gid: 7 });
        assert_eq!(unseen, Peer { pid: None, user: 7 });
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
