//! Lines for readers who may not read them.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// So many bytes at once do not block if the kernel reports room in a pipe: `PIPE_BUF`.
const PIECE: usize = 4096;

/// Writes what can be written without waiting; the rest is lost. Neither a reader that has gone nor one that does not
/// read may keep a process from undoing what it has changed.
///
/// # Errors
///
/// [`io::ErrorKind::WouldBlock`]: the reader does not read. Others: it has gone, or there is no room for the file.
pub fn write_at_once(to: impl AsFd, text: &[u8]) -> io::Result<()> {
    for piece in text.chunks(PIECE) {
        let mut polled = [PollFd::new(&to, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default()))?;
        // Without a reader a write fails at once.
        if !polled[0].revents().intersects(PollFlags::OUT | PollFlags::ERR) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        rustix::io::write(&to, piece)?;
    }
    Ok(())
}

/// stderr, by [`write_at_once`].
#[derive(Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let _ = write_at_once(io::stderr(), text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read as _, pipe};
    use std::os::unix::net::UnixStream;

    use super::{PIECE, write_at_once};

    #[test]
    fn who_does_not_read_stops_nobody() {
        let (mut reads, writes) = pipe().unwrap();
        write_at_once(&writes, b"7\n").unwrap();
        let mut text = [0; 2];
        reads.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"7\n");
        let why = |written: std::io::Result<()>| written.unwrap_err().kind();
        assert_eq!(why(write_at_once(&writes, &vec![b'x'; 1 << 24])), ErrorKind::WouldBlock);
        assert_eq!(why(write_at_once(&writes, b"nobody reads")), ErrorKind::WouldBlock);
        drop(reads);
        assert_eq!(why(write_at_once(&writes, b"nobody is there")), ErrorKind::BrokenPipe);
        let (ours, theirs) = UnixStream::pair().unwrap();
        for _ in 0..1 << 12 {
            let _ = write_at_once(&ours, &[b'x'; PIECE]);
        }
        drop(theirs);
        write_at_once(&ours, b"nobody is there").unwrap_err();
        write_at_once(File::open("/dev/null").unwrap(), b"it is not to be written").unwrap_err();
    }
}
