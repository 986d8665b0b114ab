//! Lines for readers who may not read them.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

/// So many bytes at once do not block if the kernel reports room in a pipe: `PIPE_BUF`.
const PIECE: usize = 4096;

/// Writes what can be written without waiting, and returns how much that was. Neither a reader that has gone nor one
/// that does not read may keep a process from undoing what it has changed.
///
/// # Errors
///
/// The reader has gone, or there is no room for the file.
pub fn write_at_once(to: impl AsFd, text: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    for piece in text.chunks(PIECE) {
        let mut polled = [PollFd::new(&to, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default()))?;
        // Without a reader a write fails at once.
        if !polled[0].revents().intersects(PollFlags::OUT | PollFlags::ERR) {
            break;
        }
        // Its owner may have made it non-blocking.
        let taken = match rustix::io::write(&to, piece) {
            Err(Errno::AGAIN) => 0,
            taken => taken?,
        };
        written += taken;
        if taken < piece.len() {
            break;
        }
    }
    Ok(written)
}

/// Writes lines by [`write_at_once`], and each line as a whole: a pipe may take a part of a line that is longer than
/// `PIPE_BUF`, and then the rest comes before the next line. Lines are lost until there is room for the rest.
#[derive(Debug)]
pub struct WholeLineWriter<T: AsFd> {
    to: T,
    rest: Vec<u8>,
}

impl<T: AsFd> WholeLineWriter<T> {
    /// Nothing is written yet.
    pub fn new(to: T) -> Self {
        Self { to, rest: Vec::new() }
    }

    /// Writes a line, or loses it.
    ///
    /// # Errors
    ///
    /// Those of [`write_at_once`].
    pub fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let taken = write_at_once(&self.to, &self.rest)?;
        self.rest.drain(..taken);
        if self.rest.is_empty() {
            let taken = write_at_once(&self.to, line)?;
            if taken > 0 {
                self.rest.extend(&line[taken..]);
            }
        }
        Ok(())
    }
}

impl<T: AsFd> Drop for WholeLineWriter<T> {
    fn drop(&mut self) {
        let _ = write_at_once(&self.to, &self.rest);
    }
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

    use super::{PIECE, WholeLineWriter, write_at_once};

    #[test]
    fn who_does_not_read_stops_nobody() {
        let (mut reads, writes) = pipe().unwrap();
        write_at_once(&writes, b"7\n").unwrap();
        let mut text = [0; 2];
        reads.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"7\n");
        assert!(write_at_once(&writes, &vec![b'x'; 1 << 24]).unwrap() < 1 << 24);
        assert_eq!(write_at_once(&writes, b"nobody reads").unwrap(), 0);
        drop(reads);
        let why = write_at_once(&writes, b"nobody is there").unwrap_err().kind();
        assert_eq!(why, ErrorKind::BrokenPipe);
        let (ours, theirs) = UnixStream::pair().unwrap();
        for _ in 0..1 << 12 {
            let _ = write_at_once(&ours, &[b'x'; PIECE]);
        }
        drop(theirs);
        write_at_once(&ours, b"nobody is there").unwrap_err();
        write_at_once(File::open("/dev/null").unwrap(), b"it is not to be written").unwrap_err();
    }

    #[test]
    fn a_reader_that_falls_behind_gets_whole_lines() {
        let (mut reads, writes) = pipe().unwrap();
        let mut lines = WholeLineWriter::new(writes);
        // It needs three pages of a pipe, which mostly has 16.
        let line = |n: u32| format!("{n:05}{}\n", "x".repeat(2 * PIECE));
        (0..100).for_each(|n| lines.put(line(n).as_bytes()).unwrap());
        assert!(!lines.rest.is_empty(), "no line was cut");
        let mut text = vec![0; 20_000];
        reads.read_exact(&mut text).unwrap();
        lines.put(line(100).as_bytes()).unwrap();
        drop(lines);
        reads.read_to_end(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let got: Vec<u32> = text.lines().map(|line| line[..5].parse().unwrap()).collect();
        assert_eq!(text, got.iter().map(|&n| line(n)).collect::<String>());
        assert!(got.starts_with(&[0, 1]) && got.ends_with(&[5, 100]), "{got:?}");
    }
}
