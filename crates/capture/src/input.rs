//! Makes lines from bytes: decompression by magic number, and lines of bounded length.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::{CaptureError, Limits};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Compressions that are recognised only to advise a conversion.
const COMPRESSIONS: &[(&[u8], &str, &str)] = &[
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz -dc FILE | gzip >FILE.gz"),
    (b"BZh", "bzip2", "bzip2 -dc FILE | gzip >FILE.gz"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4 -dc FILE | gzip >FILE.gz"),
    (b"PK\x03\x04", "zip", "unzip -p FILE | gzip >FILE.gz"),
];
const BINARIES: &[(&[u8], &str, &str)] = &[
    (
        b"PERFILE2",
        "perf.data",
        "perf script -i FILE --ns --show-lost-events -F comm,tid,cpu,time,event,trace",
    ),
    (b"\x17\x08\x44tracing", "trace.dat", "trace-cmd report -i FILE"),
];

/// The text of an input, and the number of input bytes read so far.
pub(crate) struct Source<'a> {
    text: Box<dyn BufRead + 'a>,
    taken: Rc<Cell<u64>>,
}

/// Counts the bytes that are read through it.
struct CountingReader<R>(R, Rc<Cell<u64>>);

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(out)?;
        self.1.set(self.1.get() + n as u64);
        Ok(n)
    }
}

/// Opens the text of `input`, decompressed if it is compressed.
///
/// # Errors
///
/// Known formats that cannot be read are refused by name, with the command that converts them.
pub(crate) fn text<'a>(input: impl Read + 'a) -> Result<Source<'a>, CaptureError> {
    let taken = Rc::new(Cell::new(0));
    let text = decompressed(CountingReader(input, Rc::clone(&taken)))?;
    Ok(Source { text, taken })
}

fn decompressed<'a>(input: impl Read + 'a) -> Result<Box<dyn BufRead + 'a>, CaptureError> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    // A short read could split a magic number: fill until there is enough or the input ends.
    let mut head = Vec::with_capacity(16);
    let fail = |source| CaptureError::Read { lines: 0, source };
    input.by_ref().take(16).read_to_end(&mut head).map_err(fail)?;
    for &(magic, kind, remedy) in COMPRESSIONS {
        if head.starts_with(magic) {
            return Err(CaptureError::Compression { kind, remedy });
        }
    }
    for &(magic, kind, remedy) in BINARIES {
        if head.starts_with(magic) {
            return Err(CaptureError::BinaryTrace { kind, remedy });
        }
    }
    let gzip = head.starts_with(GZIP);
    let zstd = head.starts_with(ZSTD) || is_skippable(&head);
    let input = BufReader::with_capacity(1 << 16, io::Cursor::new(head).chain(input));
    if gzip {
        return Ok(Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(input))));
    }
    if zstd {
        let frames = Zstd::new(input).map_err(fail)?;
        return Ok(Box::new(BufReader::with_capacity(1 << 16, frames)));
    }
    Ok(Box::new(input))
}

/// Parallel compressors put a skippable frame (magic 0x184d2a50 to 0x184d2a5f) first.
fn is_skippable(head: &[u8]) -> bool {
    head.len() >= 4 && head[0] & 0xf0 == 0x50 && head[1..4] == [0x2a, 0x4d, 0x18]
}

/// A frame header that is valid and empty: single segment, content size 0.
const EMPTY_FRAME: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00];

/// All frames of a zstd file, one after the other.
struct Zstd<R: BufRead> {
    source: R,
    decoder: FrameDecoder,
    inside: bool,
}

impl<R: BufRead> Zstd<R> {
    /// The decoder checks the window size (at most 100 MiB) against hostile headers only from its
    /// second frame on, so it is shown an empty one first.
    fn new(source: R) -> io::Result<Self> {
        let mut decoder = FrameDecoder::new();
        decoder.init(EMPTY_FRAME).map_err(io::Error::other)?;
        Ok(Self { source, decoder, inside: false })
    }

    /// Begins the frame at the front of the source, or skips it if it is skippable.
    fn begin(&mut self) -> io::Result<()> {
        match self.decoder.init(&mut self.source) {
            Ok(()) => self.inside = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let mut skipped = self.source.by_ref().take(u64::from(length));
                io::copy(&mut skipped, &mut io::sink())?;
            }
            Err(e) => return Err(damaged(e)),
        }
        Ok(())
    }

    /// Ends a frame whose bytes have all been returned.
    fn end(&mut self) -> io::Result<()> {
        self.inside = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other("zstd checksum does not match: the file is damaged"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.inside {
                if out.is_empty() || self.source.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.begin()?;
            } else if self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            } else if self.decoder.is_finished() {
                self.end()?;
            } else {
                let strategy = BlockDecodingStrategy::UptoBytes(1 << 17);
                self.decoder.decode_blocks(&mut self.source, strategy).map_err(damaged)?;
            }
        }
    }
}

/// The decoder's error, or, if the file just ends too soon, an unexpected end.
fn damaged(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(e) = cause {
        if let Some(e) = e.downcast_ref::<io::Error>() {
            return e.kind().into();
        }
        cause = e.source();
    }
    io::Error::other(error)
}

/// Text that is more than this many times as large as its file is no trace: in traces the time stamps differ from line
/// to line, so they compress to between a tenth and a thirtieth.
const MOST_GROWTH: u64 = 100;

/// This much text is accepted from any file, however small: the decompressor's window may hold that much.
const FREE_GROWTH: u64 = 4 << 20;

/// Lines of text of bounded length; holds at most one at a time.
pub(crate) struct Lines<'a> {
    source: Source<'a>,
    line: Vec<u8>,
    limits: Limits,
    /// Number of lines returned so far, and so of the current line.
    pub(crate) count: u64,
    /// Bytes read so far.
    pub(crate) bytes: u64,
}

/// A line, or a marker that it was too long.
pub(crate) enum Text<'l> {
    Line(Cow<'l, str>),
    TooLong,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(source: Source<'a>, limits: Limits) -> Self {
        Self { source, line: Vec::new(), limits, count: 0, bytes: 0 }
    }

    /// The next line without its end; `None` at the end of the input. Bytes that are not UTF-8 (a comm may contain any)
    /// become replacement characters.
    ///
    /// # Errors
    ///
    /// The input cannot be read further, is larger than the limits, or is not text. Each is detected at most one buffer
    /// late, even within a line that does not end.
    pub(crate) fn next(&mut self) -> Result<Option<Text<'_>>, CaptureError> {
        self.line.clear();
        let mut any = false;
        let mut too_long = false;
        loop {
            let chunk = match self.source.text.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(CaptureError::Read { lines: self.count, source }),
            };
            if chunk.is_empty() {
                break;
            }
            any = true;
            let end = chunk.iter().position(|&b| b == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if part.contains(&0) {
                return Err(CaptureError::NotText);
            }
            if self.line.len() + part.len() > self.limits.max_line_bytes {
                too_long = true;
            } else if !too_long {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.bytes += used as u64;
            self.source.text.consume(used);
            let grown = self.source.taken.get().saturating_mul(MOST_GROWTH) + FREE_GROWTH;
            if self.bytes > grown {
                return Err(CaptureError::Bomb { times: MOST_GROWTH });
            }
            if self.bytes > self.limits.max_text_bytes {
                return Err(CaptureError::too_much_text(self.limits.max_text_bytes));
            }
            if end.is_some() {
                break;
            }
        }
        if !any {
            return Ok(None);
        }
        self.count += 1;
        if too_long {
            return Ok(Some(Text::TooLong));
        }
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        Ok(Some(Text::Line(String::from_utf8_lossy(line))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8], max: usize) -> Vec<String> {
        let limits = Limits { max_line_bytes: max, ..Limits::default() };
        let mut lines = Lines::new(text(bytes).unwrap(), limits);
        let mut out = Vec::new();
        while let Some(t) = lines.next().unwrap() {
            out.push(match t {
                Text::Line(l) => l.into_owned(),
                Text::TooLong => "<too long>".to_owned(),
            });
        }
        out
    }

    #[test]
    fn a_long_line_is_skipped_and_the_next_one_is_whole() {
        let mut input = b"one\r\n".to_vec();
        input.extend(std::iter::repeat_n(b'x', 300_000));
        input.extend(b"\nlast");
        assert_eq!(lines(&input, 100), ["one", "<too long>", "last"]);
        assert_eq!(lines(b"", 100), [""; 0]);
    }

    #[test]
    fn zstd_frames_follow_each_other_and_skippable_ones_are_skipped() {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let mut file = vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        for part in ["a\nb", "c\nd\n"] {
            file.extend(ruzstd::encoding::compress_to_vec(part.as_bytes(), level));
        }
        assert_eq!(lines(&file, 100), ["a", "bc", "d"]);
    }

    #[test]
    fn a_zstd_header_that_asks_for_a_huge_window_is_refused() {
        // Window descriptor 0xf8: 2 TiB.
        let file = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0, 0, 0, 0, 0];
        let mut lines = Lines::new(text(&file[..]).unwrap(), Limits::default());
        assert!(lines.next().is_err_and(|e| e.to_string().to_lowercase().contains("window")));
    }

    #[test]
    fn a_zstd_file_that_ends_too_soon_is_said_to() {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let file = ruzstd::encoding::compress_to_vec(&b"some text of a line\n"[..], level);
        for end in [4, 8, file.len() - 1] {
            let mut lines = Lines::new(text(&file[..end]).unwrap(), Limits::default());
            let error = std::iter::repeat_with(|| lines.next().map(|text| text.is_some()))
                .find_map(Result::err)
                .unwrap();
            assert!(error.to_string().contains("unexpected end of file"), "{end}: {error}");
        }
    }

    /// A zstd file of `blocks` blocks of 128 KiB, each one repeated byte.
    fn bomb(byte: u8, blocks: usize) -> Vec<u8> {
        // No single segment, no checksum; a window of 128 KiB.
        let mut file = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
        for i in 1..=blocks {
            let header = u32::from(i == blocks) | 1 << 1 | (128 << 10) << 3;
            file.extend(&header.to_le_bytes()[..3]);
            file.push(byte);
        }
        file
    }

    #[test]
    fn a_small_file_of_much_text_is_refused_before_it_is_read() {
        let end = |file: &[u8]| {
            let mut lines = Lines::new(text(file).unwrap(), Limits::default());
            loop {
                match lines.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => return (lines.bytes, "the end".to_owned()),
                    Err(e) => return (lines.bytes, e.to_string()),
                }
            }
        };
        // 200 GB, of lines or of a single line, and input that is not text from its first byte.
        for byte in [b'\n', b'x'] {
            let (bytes, why) = end(&bomb(byte, 1_600_000)[..]);
            assert!(why.contains("100 times as large") && why.contains("remedy"), "{why}");
            assert!(bytes < 64 << 20, "{bytes}");
        }
        assert!(end(&bomb(0, 1_600_000)).1.contains("not text"));
        assert_eq!(end(&bomb(b'x', 4)), (512 << 10, "the end".to_owned()));
    }

    #[test]
    fn a_line_that_does_not_end_is_bounded_in_bytes() {
        let limits = Limits { max_text_bytes: 1 << 20, ..Limits::default() };
        let mut lines = Lines::new(text(io::repeat(b'x')).unwrap(), limits);
        let why = lines.next().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(why.contains("max_text_bytes"), "{why}");
        assert!(lines.bytes < 2 << 20);
    }

    #[test]
    fn other_formats_are_refused_by_name_with_the_remedy() {
        for (magic, name) in [
            (&b"\xfd7zXZ\0rest"[..], "xz"),
            (b"BZh91AY", "bzip2"),
            (b"PERFILE2....", "perf.data"),
            (b"\x17\x08\x44tracing6", "trace.dat"),
        ] {
            let message = text(magic).err().unwrap().to_string();
            assert!(message.contains(name) && message.contains('`'), "{message}");
        }
    }
}
