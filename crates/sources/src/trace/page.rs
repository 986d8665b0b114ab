//! Pages of the kernel's trace ring buffer, as `per_cpu/cpuN/trace_pipe_raw` gives them.
//!
//! A page is a header (time of its first event, committed bytes and flags) and a chain of events,
//! each a 32-bit word of 5 bits of type or length and 27 bits of time since the one before. Layout
//! and meaning: the kernel's `events/header_page`, `events/header_event` and
//! `Documentation/trace/ring-buffer-design.rst`. Little endian, as everything in this crate.
//!
//! The bytes come from the kernel, but through a file: no bytes make this code panic, loop or read outside of them.
//! Bytes that cannot be decoded end the page and are reported ([`Records::is_broken`]).

/// Largest event type that is a length.
const LONGEST: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Bits of a time delta in the first word.
const DELTA_BITS: u32 = 27;

/// An absolute time stamp has 59 bits; the upper bits are those of the last time.
const STAMP_BITS: u32 = 59;

/// Mask of the committed length: the bits that are no flags.
const LENGTH: u64 = (1 << DELTA_BITS) - 1;
/// Events were lost before this page.
const MISSED: u64 = 1 << 31;
/// The number of lost events is stored behind the events.
const MISSED_STORED: u64 = 1 << 30;

/// Layout of a page of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset and size (4 or 8) of the length.
    commit: (usize, usize),
    /// Offset of the events.
    data: usize,
    /// Bytes of a page.
    size: usize,
}

impl Layout {
    /// Layout of 64-bit kernels with 4 KiB pages.
    pub const USUAL: Self = Self { commit: (8, 8), data: 16, size: 4096 };

    /// Parses the text of `events/header_page`; `None` if this code cannot read such pages.
    pub fn parse(text: &str) -> Option<Self> {
        let place = |name: &str| {
            let line = text.lines().find(|l| super::format::declares(l, name))?;
            super::format::place(line)
        };
        let ((time, eight), commit, (data, room)) =
            (place("timestamp")?, place("commit")?, place("data")?);
        let size = data.checked_add(room)?;
        let sound = time == 0
            && eight == 8
            && matches!(commit.1, 4 | 8)
            && commit.0 >= 8
            && commit.0.checked_add(commit.1)? <= data
            && size <= 1 << 20;
        sound.then_some(Self { commit, data, size })
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> usize {
        self.size
    }
}

/// One page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    events: &'a [u8],
    time: u64,
    missed: Option<u64>,
}

impl<'a> Page<'a> {
    /// A page from its bytes; `None` if they are fewer than its header says.
    pub fn new(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        let time = u64_at(bytes, 0)?;
        let commit = match layout.commit.1 {
            4 => u64::from(u32_at(bytes, layout.commit.0)?),
            _ => u64_at(bytes, layout.commit.0)?,
        };
        let length = usize::try_from(commit & LENGTH).ok()?;
        let behind = bytes.get(layout.data..)?;
        let events = behind.get(..length)?;
        let missed = (commit & MISSED != 0).then(|| {
            let stored = u64_at(behind, length).filter(|_| commit & MISSED_STORED != 0);
            stored.unwrap_or(0)
        });
        Some(Self { events, time, missed })
    }

    /// Time of its first event, in the trace's clock.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Events of this CPU were lost just before this page: how many, or 0 if the number is not known.
    pub fn missed(&self) -> Option<u64> {
        self.missed
    }

    /// Its events.
    pub fn records(&self) -> Records<'a> {
        Records { rest: self.events, time: self.time, broken: false }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time, in the trace's clock.
    pub time: u64,
    /// The event's fields, for a [`Format`](super::format::Format), perhaps with padding behind them.
    pub data: &'a [u8],
}

/// Events of a page, in order.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    time: u64,
    broken: bool,
}

impl<'a> Records<'a> {
    /// The page ended in bytes that are no event: the rest is lost.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Reads the next event and its time. Outer `None`: broken. Inner `None`: not data, or the end.
    fn step(&mut self) -> Option<Option<Record<'a>>> {
        let head = u32_at(self.rest, 0)?;
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        match kind {
            // Rest of the page.
            PADDING if delta == 0 => {
                self.rest = &[];
                Some(None)
            }
            PADDING => {
                let length = usize::try_from(u32_at(self.rest, 4)?).ok()?;
                // 1 stands for none: the kernel may not write 0 here.
                self.time = self.time.wrapping_add(if delta == 1 { 0 } else { delta });
                self.rest = self.rest.get(length.checked_add(4)?..)?;
                Some(None)
            }
            TIME_EXTEND | TIME_STAMP => {
                let wide = u64::from(u32_at(self.rest, 4)?) << DELTA_BITS | delta;
                self.time = if kind == TIME_EXTEND {
                    self.time.wrapping_add(wide)
                } else {
                    stamp(self.time, wide)
                };
                self.rest = self.rest.get(8..)?;
                Some(None)
            }
            _ => {
                let (start, length) = if kind == 0 {
                    (8, usize::try_from(u32_at(self.rest, 4)?).ok()?.checked_sub(4)?)
                } else {
                    debug_assert!(kind <= LONGEST);
                    (4, kind as usize * 4)
                };
                // Events are padded to whole words.
                let length = length.checked_next_multiple_of(4)?;
                let end = length.checked_add(start)?;
                let data = self.rest.get(start..end)?;
                self.rest = self.rest.get(end..)?;
                self.time = self.time.wrapping_add(delta);
                Some(Some(Record { time: self.time, data }))
            }
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    /// Each step consumes at least four bytes, or ends.
    fn next(&mut self) -> Option<Record<'a>> {
        while !self.rest.is_empty() {
            match self.step() {
                Some(Some(record)) => return Some(record),
                Some(None) => {}
                None => {
                    self.broken = true;
                    self.rest = &[];
                }
            }
        }
        None
    }
}

/// An absolute time: its missing upper bits are those of the last time, plus one if it would go back.
fn stamp(last: u64, wide: u64) -> u64 {
    let low = wide & ((1 << STAMP_BITS) - 1);
    let time = last >> STAMP_BITS << STAMP_BITS | low;
    if time < last { time.wrapping_add(1 << STAMP_BITS) } else { time }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Layout, PADDING, Page, TIME_EXTEND, TIME_STAMP};
    use proptest::prelude::*;

    /// The file of a 64-bit kernel.
    const HEADER: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

    fn page(time: u64, flags: u64, words: &[u32]) -> Vec<u8> {
        let mut bytes = time.to_le_bytes().to_vec();
        bytes.extend(((4 * words.len() as u64) | flags).to_le_bytes());
        words.iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        bytes.resize(4096, 0xee);
        bytes
    }

    fn read(bytes: &[u8]) -> (Vec<(u64, Vec<u8>)>, bool) {
        let page = Page::new(bytes, &Layout::USUAL).unwrap();
        let mut records = page.records();
        let out = records.by_ref().map(|r| (r.time, r.data.to_vec())).collect();
        (out, records.is_broken())
    }

    #[test]
    fn the_layout_is_read_from_the_kernel() {
        assert_eq!(Layout::parse(HEADER), Some(Layout::USUAL));
        assert_eq!(Layout::parse(""), None);
        assert_eq!(Layout::parse(&HEADER.replace("offset:16", "offset:8")), None);
    }

    #[test]
    fn every_kind_of_event() {
        let words = [
            // Two words of data, 5 later.
            5 << 5 | 2,
            1,
            2,
            // 2^27 + 3 later.
            3 << 5 | TIME_EXTEND,
            1,
            // Long form: 4 bytes of its own and 6 of data, padded to 8.
            0,
            10,
            3,
            4,
            // Discarded, 7 later: one word.
            7 << 5 | PADDING,
            4,
            // Absolute.
            9 << 5 | TIME_STAMP,
            2,
            1 << 5 | 1,
            6,
            // The rest is nothing.
            PADDING,
            0xffff_ffff,
        ];
        let (records, broken) = read(&page(1000, 0, &words));
        let data = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(
            records,
            [
                (1005, data(&[1, 2])),
                (1005 + (1 << 27) + 3, data(&[3, 4])),
                ((2 << 27) + 10, data(&[6])),
            ]
        );
        assert!(!broken);
    }

    #[test]
    fn an_absolute_time_keeps_the_upper_bits() {
        let high = 3_u64 << 59;
        let (records, _) = read(&page(high + 500, 0, &[9 << 5 | TIME_STAMP, 4, 1, 0]));
        assert_eq!(records[0].0, high + (4 << 27) + 9);
        // One that would go back has wrapped.
        let (records, _) = read(&page(high + (5 << 27), 0, &[9 << 5 | TIME_STAMP, 4, 1, 0]));
        assert_eq!(records[0].0, (4 << 59) + (4 << 27) + 9);
    }

    #[test]
    fn losses_are_told() {
        let mut bytes = page(1, 1 << 31 | 1 << 30, &[1, 0]);
        bytes[16 + 8..16 + 16].copy_from_slice(&77_u64.to_le_bytes());
        assert_eq!(Page::new(&bytes, &Layout::USUAL).unwrap().missed(), Some(77));
        let unknown = page(1, 1 << 31, &[1, 0]);
        assert_eq!(Page::new(&unknown, &Layout::USUAL).unwrap().missed(), Some(0));
        assert_eq!(Page::new(&page(1, 0, &[1, 0]), &Layout::USUAL).unwrap().missed(), None);
    }

    #[test]
    fn what_cannot_be_followed_ends_the_page_and_is_said() {
        for words in [&[5 << 5 | 2, 1][..], &[0], &[0, 3], &[0, u32::MAX], &[1 << 5 | PADDING, 99]]
        {
            let (records, broken) = read(&page(0, 0, words));
            assert!(records.is_empty() && broken, "{words:?}");
        }
        let mut long = page(0, 0, &[1, 0]);
        long[8] = 0xff;
        long[9] = 0xff;
        assert!(Page::new(&long, &Layout::USUAL).is_none(), "longer than its page");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Some(page) = Page::new(&bytes, &Layout::USUAL) {
                prop_assert!(page.records().count() <= bytes.len() / 4);
            }
        }

        /// Every event of a sound page comes out with its time and its bytes.
        #[test]
        fn what_was_written_is_read(
            start in 0_u64..1 << 58,
            events in prop::collection::vec((0_u64..1 << 40, 1_usize..40), 0..40),
        ) {
            let (mut words, mut time, mut expected) = (Vec::new(), start, Vec::new());
            for (i, (delta, length)) in events.iter().enumerate() {
                time += delta;
                if *delta >= 1 << 27 {
                    let low = (delta & ((1 << 27) - 1)) as u32;
                    words.extend([low << 5 | TIME_EXTEND, (delta >> 27) as u32]);
                }
                let delta = if *delta < 1 << 27 { *delta as u32 } else { 0 };
                if *length <= 28 {
                    words.push(delta << 5 | *length as u32);
                } else {
                    words.extend([delta << 5, *length as u32 * 4 + 4]);
                }
                words.extend(vec![i as u32; *length]);
                expected.push((time, (i as u32).to_le_bytes().repeat(*length)));
            }
            prop_assume!(words.len() * 4 <= 4080);
            let (records, broken) = read(&page(start, 0, &words));
            prop_assert_eq!(records, expected);
            prop_assert!(!broken);
        }
    }
}
