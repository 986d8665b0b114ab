//! Samples on their way to a file: each run writes its own into the folder as they come, and at the
//! end they are put together in the order of plans and repeats. Nothing is kept in memory.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use vcoop_lab::runner::RunId;
use vcoop_model::plan::Ns;
use vcoop_model::recording::{Part, Parts};
use vcoop_model::span::{Observer, SampleEvent};

/// Where the samples of all runs go.
#[derive(Debug)]
pub struct Spools {
    folder: PathBuf,
    runs: Mutex<Vec<Spooled>>,
}

/// One run's samples.
#[derive(Clone, Debug)]
pub(super) struct Spooled {
    pub(super) run: RunId,
    path: PathBuf,
    /// Probes and labels by the numbers that records have.
    pub(super) names: Vec<String>,
    failed: Option<String>,
}

/// Writes the samples of one run.
#[derive(Debug)]
pub struct Spool<'a> {
    all: &'a Spools,
    run: RunId,
    path: PathBuf,
    /// When the measurement begins, from the start of the run.
    zero: Ns,
    out: BufWriter<File>,
    names: Vec<String>,
    record: Vec<u8>,
    error: Option<io::Error>,
}

/// A sample as it is read back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Number of its probe's name.
    pub(super) probe: u64,
    pub(super) due: Ns,
    pub(super) latency: Ns,
    pub(super) parts: Parts,
    /// Number of the name of who ran most of the time instead, and for how long.
    pub(super) behind: Option<(u64, Ns)>,
    pub(super) open: bool,
}

impl Spools {
    /// Runs write into this folder, which is there.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), runs: Mutex::default() }
    }

    /// Somewhere for a run to write to; its measurement begins `zero` after it.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn begin(&self, run: RunId, zero: Ns) -> io::Result<Spool<'_>> {
        let name = format!(".samples-{}-{}-{}.part", run.backend, run.plan, run.repeat);
        let path = self.folder.join(name);
        let out = BufWriter::with_capacity(1 << 16, File::create(&path)?);
        let (names, record) = (Vec::new(), Vec::new());
        Ok(Spool { all: self, run, path, zero, out, names, record, error: None })
    }

    /// What there is, in the order of plans and repeats.
    ///
    /// # Errors
    ///
    /// What went wrong in writing it.
    pub(super) fn sorted(&self) -> Result<Vec<Spooled>, String> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Backends in the order in which they ran: the simulated ones first.
        runs.sort_by(|a, b| {
            let key = |s: &Spooled| (s.run.column, s.run.plan, s.run.repeat);
            key(a).cmp(&key(b))
        });
        match runs.iter().find_map(|run| run.failed.as_ref().map(|why| (why, &run.path))) {
            Some((why, path)) => Err(format!("cannot write {}: {why}", path.display())),
            None => Ok(runs),
        }
    }
}

impl Drop for Spools {
    fn drop(&mut self) {
        for run in self.runs.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = std::fs::remove_file(&run.path);
        }
    }
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    // LEB128: most parts are zero, and most times are short.
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(from: &mut impl Read) -> io::Result<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        shift += 7;
        if byte[0] < 0x80 || shift > 63 {
            return Ok(value);
        }
    }
}

impl Spool<'_> {
    fn name(&mut self, name: &str) -> u64 {
        let known = self.names.iter().position(|n| n == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        }) as u64
    }
}

impl Observer for Spool<'_> {
    fn sample(&mut self, _: Ns, sample: &SampleEvent<'_>) {
        if !sample.counts || self.error.is_some() {
            return;
        }
        let probe = self.name(sample.probe);
        let behind = sample.behind.map(|(who, ns)| (self.name(who) + 1, ns));
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        put(&mut record, probe << 1 | u64::from(sample.open));
        put(&mut record, sample.due_ns.saturating_sub(self.zero));
        put(&mut record, sample.latency_ns);
        let (who, ns) = behind.unwrap_or_default();
        put(&mut record, who);
        put(&mut record, ns);
        let set = |mask, (i, ns): (usize, &Ns)| mask | u64::from(*ns > 0) << i;
        put(&mut record, sample.parts.iter().enumerate().fold(0, set));
        sample.parts.iter().filter(|ns| **ns > 0).for_each(|ns| put(&mut record, *ns));
        self.error = self.out.write_all(&record).err();
        self.record = record;
    }

    fn ends(&mut self) {
        let flushed = self.out.flush();
        let failed = self.error.take().or(flushed.err()).map(|e| e.to_string());
        let (run, path) = (self.run, self.path.clone());
        let names = std::mem::take(&mut self.names);
        let spooled = Spooled { run, path, names, failed };
        self.all.runs.lock().unwrap_or_else(PoisonError::into_inner).push(spooled);
    }
}

impl Spooled {
    /// Its samples, in the order in which they were taken.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(super) fn read(&self) -> io::Result<impl Iterator<Item = io::Result<Record>>> {
        let mut file = BufReader::with_capacity(1 << 16, File::open(&self.path)?);
        Ok(std::iter::from_fn(move || match record(&mut file) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            other => Some(other),
        }))
    }
}

fn record(file: &mut impl Read) -> io::Result<Record> {
    let head = take(file)?;
    let mut record = Record {
        probe: head >> 1,
        open: head & 1 == 1,
        due: take(file)?,
        latency: take(file)?,
        ..Record::default()
    };
    let (who, ns) = (take(file)?, take(file)?);
    record.behind = who.checked_sub(1).map(|who| (who, ns));
    let mask = take(file)?;
    for i in 0..Part::COUNT {
        if mask >> i & 1 == 1 {
            record.parts[i] = take(file)?;
        }
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::{put, take};

    #[test]
    fn numbers_of_every_size_come_back() {
        let mut bytes = Vec::new();
        let numbers = [0, 1, 127, 128, 1 << 20, u64::from(u32::MAX), u64::MAX];
        numbers.iter().for_each(|n| put(&mut bytes, *n));
        let mut from = bytes.as_slice();
        numbers.iter().for_each(|n| assert_eq!(take(&mut from).expect("it is there"), *n));
        assert!(take(&mut from).is_err(), "and nothing else");
    }
}
