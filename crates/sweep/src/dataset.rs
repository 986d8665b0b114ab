//! The folder of a sweep.
//!
//! ```text
//! manifest.json          which sweep it is, and of which build; written first, never changed
//! part-000000.parquet    points 0 to n-1, all of them; written whole, under another name first
//! part-000001.journal    points of a part that is not complete; gone when it is
//! ```
//!
//! The number of points determines which points are in which part, so the bytes depend neither on timing nor on how
//! often the sweep was stopped. A folder with other content is refused. So is one of the same sweep by another build,
//! or with files that have changed since: half of its points would be about something else.
//!
//! A writer holds a lock on the folder itself. Files in it come and go by renaming, so a lock on one of them would not
//! be reliable.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use vcoop_model::file;

use crate::job::Job;
use crate::journal::Journal;
use crate::manifest::{MANIFEST, Manifest, Unreadable, journal_name, part_name};
use crate::parquet_writer::{self, LocatedPoint};
use crate::part;
use crate::row::PointRows;

/// Why a sweep cannot continue in a folder.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// It belongs to something else; nothing in it was changed.
    #[error("{dir}: it {why}; nothing was overwritten. {remedy}")]
    Refused {
        /// The folder.
        dir: String,
        /// To what it belongs.
        why: String,
        /// The remedy, as a sentence.
        remedy: &'static str,
    },
    /// A part of it is damaged; nothing in it was changed.
    #[error("{dir}: {why}")]
    Part {
        /// The folder.
        dir: String,
        /// What is wrong, and the remedy.
        why: String,
    },
    /// Something in it, or a file that a point uses, cannot be read or written.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: String,
        /// The system's error.
        error: String,
    },
}

/// The folder of a sweep, open for writing.
#[derive(Debug)]
pub struct Dataset {
    dir: PathBuf,
    manifest: Manifest,
    complete: Vec<bool>,
    /// Parts that were begun and are not complete.
    open: BTreeMap<u32, Part>,
    /// Held while it is open: two writers in one folder would destroy each other's work.
    _lock: File,
}

#[derive(Debug)]
struct Part {
    journal: Journal,
    points: BTreeMap<u32, PointRows>,
}

impl Dataset {
    /// Makes the folder, or opens it to continue the same sweep. `build`: the build that simulates the points.
    ///
    /// # Errors
    ///
    /// The folder has other content, belongs to another sweep or build, or is in use; or it cannot be read or written.
    pub fn open(dir: &Path, job: &Job, build: &str) -> Result<Self, DatasetError> {
        let manifest = Manifest::new(job, build);
        fs::create_dir_all(dir).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                refused(dir, "is not a folder".to_owned(), "Name a folder")
            }
            _ => failed("make", dir, &e),
        })?;
        let Some(lock) = file::lock_folder(dir).map_err(|e| failed("lock", dir, &e))? else {
            let why = "is being written by another process".to_owned();
            return Err(refused(dir, why, "Wait for its end, or name another folder"));
        };
        let path = dir.join(MANIFEST);
        match file::bytes(&path, file::MOST_DOCUMENT) {
            Ok(text) => hold_against(dir, &manifest, &text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => begin(dir, &manifest)?,
            Err(e) => return Err(failed("read", &path, &e)),
        }
        let there = |k| match part::open(dir, &manifest, k) {
            Ok(found) => Ok(found.is_some()),
            Err(Unreadable(why)) => Err(DatasetError::Part { dir: dir.display().to_string(), why }),
        };
        let complete = (0..manifest.parts()).map(there).collect::<Result<_, _>>()?;
        let mut this =
            Self { dir: dir.to_owned(), manifest, complete, open: BTreeMap::new(), _lock: lock };
        for part in 0..this.manifest.parts() {
            if this.complete[part as usize] {
                // Killed after the part was there, before its journal was gone.
                let _ = fs::remove_file(this.dir.join(journal_name(part)));
            } else if this.dir.join(journal_name(part)).exists() {
                this.part(part)?;
                this.close_if_complete(part, job)?;
            }
        }
        Ok(this)
    }

    /// The folder's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether a point exists.
    pub fn has(&self, point: u32) -> bool {
        let part = point / self.manifest.part_points;
        self.complete.get(part as usize).copied().unwrap_or(false)
            || self.open.get(&part).is_some_and(|p| p.points.contains_key(&point))
    }

    /// Points that do not exist yet, ascending.
    pub fn missing(&self) -> Vec<u32> {
        (0..self.manifest.points).filter(|point| !self.has(*point)).collect()
    }

    /// First point of the first part that is not complete: points before it need no memory.
    pub fn frontier(&self) -> u32 {
        let first = self.complete.iter().position(|done| !done).unwrap_or(self.complete.len());
        first as u32 * self.manifest.part_points
    }

    /// Adds a point, unless it exists. With the last point of a part the part is written, and is on disk when this
    /// returns.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn add(&mut self, rows: PointRows, job: &Job) -> Result<(), DatasetError> {
        if rows.point >= self.manifest.points || self.has(rows.point) {
            return Ok(());
        }
        let part = rows.point / self.manifest.part_points;
        let path = self.dir.join(journal_name(part));
        let open = self.part(part)?;
        open.journal.add(&rows).map_err(|e| failed("write", &path, &e))?;
        open.points.insert(rows.point, rows);
        self.close_if_complete(part, job)
    }

    /// A part that was begun; opens its journal at the first call.
    fn part(&mut self, part: u32) -> Result<&mut Part, DatasetError> {
        let path = self.dir.join(journal_name(part));
        let points = self.manifest.range(part);
        match self.open.entry(part) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let mark = part::mark(&self.manifest, part).value.unwrap_or_default();
                let (journal, found) =
                    Journal::open(&path, &mark).map_err(|e| failed("read", &path, &e))?;
                let found = found.into_iter().filter(|p| points.contains(&p.point));
                let points = found.map(|p| (p.point, p)).collect();
                Ok(entry.insert(Part { journal, points }))
            }
        }
    }

    fn close_if_complete(&mut self, part: u32, job: &Job) -> Result<(), DatasetError> {
        let range = self.manifest.range(part);
        let Some(open) = self.open.get(&part).filter(|p| p.points.len() == range.len()) else {
            return Ok(());
        };
        let points: Vec<LocatedPoint<'_>> = open
            .points
            .values()
            .map(|point| LocatedPoint { cells: job.cells(point.point), point })
            .collect();
        let path = self.dir.join(part_name(part));
        let mark = part::mark(&self.manifest, part);
        let bytes = parquet_writer::bytes(&self.manifest.axes, mark, &points)
            .map_err(|e| failed("write", &path, &io::Error::other(e)))?;
        place(&self.dir, &part_name(part), &bytes)?;
        self.complete[part as usize] = true;
        self.open.remove(&part);
        let journal = self.dir.join(journal_name(part));
        fs::remove_file(&journal).map_err(|e| failed("remove", &journal, &e))
    }
}

/// Writes the manifest. The folder must be empty, except for a manifest that was never finished.
fn begin(dir: &Path, manifest: &Manifest) -> Result<(), DatasetError> {
    let entries = fs::read_dir(dir).map_err(|e| failed("read", dir, &e))?;
    for entry in entries {
        let name = entry.map_err(|e| failed("read", dir, &e))?.file_name();
        if name != *temporary(MANIFEST) {
            let why = format!("holds {} but no {MANIFEST} of a sweep", name.display());
            return Err(refused(dir, why, ANOTHER));
        }
    }
    let mut text = serde_json::to_string_pretty(manifest).unwrap_or_default();
    text.push('\n');
    place(dir, MANIFEST, text.as_bytes())
}

/// The usual remedy for a folder with other content.
const ANOTHER: &str = "Name another folder";

/// Refuses a folder with another manifest.
fn hold_against(dir: &Path, own: &Manifest, text: &[u8]) -> Result<(), DatasetError> {
    let json: Option<serde_json::Value> = serde_json::from_slice(text).ok();
    let field = |key: &str| json.as_ref()?.get(key)?.as_str().map(str::to_owned);
    let refused = |why: String, remedy| Err(refused(dir, why, remedy));
    match field("schema") {
        Some(schema) if schema == own.schema => {}
        Some(schema) if schema.starts_with("vcoop.sweep/") => {
            let why = format!("is of schema {schema}, and this vcoop writes {}", own.schema);
            return refused(why, ANOTHER);
        }
        _ => return refused(format!("has a {MANIFEST} that vcoop sweep did not write"), ANOTHER),
    }
    if let Some(name) = field("name").filter(|name| *name != own.name) {
        return refused(format!("holds the sweep `{name}`"), ANOTHER);
    }
    // Another build may write other keys: this comes before all of them are looked at.
    if field("build").as_ref() != Some(&own.build) {
        let version = field("version").unwrap_or_default();
        let other = field("build").unwrap_or(format!("{version} of a build that it does not name"));
        let why = format!("was written by vcoop {other}, and this is {}", own.build);
        return refused(why, "Go on with the build that wrote it, or name another folder");
    }
    match serde_json::from_slice::<Manifest>(text) {
        Ok(other) if other == *own => Ok(()),
        Ok(other) if other.spec != own.spec => {
            refused("was written before the sweep's file was changed".to_owned(), ANOTHER)
        }
        Ok(other) if other.scenario != own.scenario => {
            refused("was written before the sweep's scenario was changed".to_owned(), ANOTHER)
        }
        Ok(other) if other.files != own.files => {
            let names = other.files.keys().chain(own.files.keys());
            let mut changed = names.filter(|name| other.files.get(*name) != own.files.get(*name));
            let name = changed.next().map_or("file", String::as_str);
            let why = format!("holds this sweep with another {name} than there is now");
            refused(why, "Put back what was there, or name another folder")
        }
        _ => refused(format!("has a {MANIFEST} that is not this sweep's"), ANOTHER),
    }
}

fn temporary(name: &str) -> String {
    format!(".{name}.part")
}

/// Writes a file as a whole: under another name, synced to disk, then renamed.
fn place(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), DatasetError> {
    let (part, path) = (dir.join(temporary(name)), dir.join(name));
    let write = || -> io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, &path)?;
        // The name itself: a directory is written like a file.
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| failed("write", &path, &e))
}

fn refused(dir: &Path, why: String, remedy: &'static str) -> DatasetError {
    DatasetError::Refused { dir: dir.display().to_string(), why, remedy }
}

fn failed(what: &'static str, path: &Path, error: &io::Error) -> DatasetError {
    DatasetError::Io { what, path: path.display().to_string(), error: error.to_string() }
}
