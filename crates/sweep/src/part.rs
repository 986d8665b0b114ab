//! The files of complete parts: each says which part of which sweep it is, and is held against that
//! before it is read.

use std::fs::File;
use std::path::Path;

use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader, SerializedFileReader};
use vcoop_model::file;

use crate::job::fnv;
use crate::manifest::{Manifest, Unreadable, cannot_read, part_name};

/// Key of the file's own metadata.
const KEY: &str = "vcoop.part";

/// What to do about a part that cannot be used.
pub(crate) const AGAIN: &str =
    "Remove that file and start the same `vcoop sweep` again: it computes that part anew";

/// A part that is open.
pub(crate) type Part = SerializedFileReader<File>;

/// What is written into a part: which it is, and of which sweep, by a digest of the manifest.
pub(crate) fn mark(manifest: &Manifest, part: u32) -> KeyValue {
    let manifest = serde_json::to_vec(manifest).unwrap_or_default();
    KeyValue::new(KEY.to_owned(), format!("{part} of {}", fnv(&manifest)))
}

/// Opens a part; `None` where it is not there. Parts of before there were marks have none.
///
/// # Errors
///
/// It cannot be read, or is another part, or of another sweep.
pub(crate) fn open(dir: &Path, manifest: &Manifest, part: u32) -> Result<Option<Part>, Unreadable> {
    let path = dir.join(part_name(part));
    // A link to nothing is there, too.
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let found = file::open(&path).map_err(|e| cannot_read(&path, &e))?;
    let reader = SerializedFileReader::new(found).map_err(|e| damaged(&path, &e))?;
    let own = mark(manifest, part).value.unwrap_or_default();
    let marks = reader.metadata().file_metadata().key_value_metadata();
    let found = marks.and_then(|all| all.iter().find(|mark| mark.key == KEY)?.value.as_ref());
    match found.and_then(|mark| Some((mark, mark.split_once(" of ")?))) {
        Some((mark, (number, _))) if *mark != own => {
            let same = own.ends_with(mark.strip_prefix(number).unwrap_or(mark));
            let whose = if same { "this sweep" } else { "another sweep" };
            let path = path.display();
            Err(Unreadable(format!("{path} is part {number} of {whose}\n  remedy: {AGAIN}")))
        }
        _ => Ok(Some(reader)),
    }
}

/// A part whose bytes are not what they should be.
pub(crate) fn damaged(path: &Path, error: &dyn std::fmt::Display) -> Unreadable {
    Unreadable(format!("{} is damaged: {error}\n  remedy: {AGAIN}", path.display()))
}

/// A part with a point that it cannot have.
pub(crate) fn misplaced(path: &Path, point: u32) -> Unreadable {
    let path = path.display();
    Unreadable(format!("{path} has point {point}, which is of another part\n  remedy: {AGAIN}"))
}
