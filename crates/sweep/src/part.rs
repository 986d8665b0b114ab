//! The files of complete parts: each has a mark (which part of which sweep) and a digest of its rows' bytes. Both are
//! checked before it is read.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use vcoop_model::file;

use crate::job::{fnv, fnv_of};
use crate::manifest::{Manifest, Unreadable, cannot_read, part_name};

/// Key of the file's own metadata.
const KEY: &str = "vcoop.part";

/// Key of the digest of its rows' bytes: Parquet's readers do not detect a changed number.
const DATA: &str = "vcoop.data";

/// Remedy for a part that cannot be used.
pub(crate) const AGAIN: &str =
    "remove that file and start the same `vcoop sweep` again: it computes that part anew";

/// A part that is open.
pub(crate) type Part = SerializedFileReader<File>;

/// The mark of a part: its number, and its sweep by a digest of the manifest.
pub(crate) fn mark(manifest: &Manifest, part: u32) -> KeyValue {
    let manifest = serde_json::to_vec(manifest).unwrap_or_default();
    KeyValue::new(KEY.to_owned(), format!("{part} of {}", fnv(&manifest)))
}

/// The digest of a part whose file begins with these bytes, which are all its rows: length and digest.
pub(crate) fn digest(rows: &[u8]) -> KeyValue {
    KeyValue::new(DATA.to_owned(), format!("{} {}", rows.len(), fnv(rows)))
}

/// Opens a part; `None` if it does not exist. Parts of old builds have neither mark nor digest.
///
/// # Errors
///
/// It cannot be read, is another part or of another sweep, or its bytes have changed.
pub(crate) fn open(dir: &Path, manifest: &Manifest, part: u32) -> Result<Option<Part>, Unreadable> {
    let path = dir.join(part_name(part));
    // A link to nothing is there, too.
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let cannot = |e: std::io::Error| cannot_read(&path, &e);
    let mut found = file::open(&path).map_err(cannot)?;
    let reader = SerializedFileReader::new(found.try_clone().map_err(cannot)?)
        .map_err(|e| damaged(&path, &e))?;
    let own = mark(manifest, part).value.unwrap_or_default();
    let marks = reader.metadata().file_metadata().key_value_metadata();
    let value = |key| marks.and_then(|all| all.iter().find(|mark| mark.key == key)?.value.as_ref());
    if let Some(digest) = value(DATA) {
        let (length, is) = digest.split_once(' ').unwrap_or_default();
        found.rewind().map_err(cannot)?;
        let rows = BufReader::new(found.take(length.parse().unwrap_or(0)));
        if fnv_of(rows).map_err(cannot)? != is {
            return Err(damaged(&path, &"its rows have changed"));
        }
    }
    let found = value(KEY);
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

/// The rows of a part, with only some of its columns.
pub(crate) fn rows(
    part: &Part,
    wanted: impl Fn(&str) -> bool,
) -> Result<RowIter<'_>, ParquetError> {
    let schema = part.metadata().file_metadata().schema();
    let fields = schema.get_fields().iter().filter(|field| wanted(field.name())).cloned();
    let projection =
        Type::group_type_builder(schema.name()).with_fields(fields.collect()).build()?;
    part.get_row_iter(Some(projection))
}

/// Error about a part with changed bytes.
pub(crate) fn damaged(path: &Path, error: &dyn std::fmt::Display) -> Unreadable {
    Unreadable(format!("{} is damaged: {error}\n  remedy: {AGAIN}", path.display()))
}

/// Error about a part with a point of another part.
pub(crate) fn misplaced(path: &Path, point: u32) -> Unreadable {
    let path = path.display();
    Unreadable(format!("{path} has point {point}, which is of another part\n  remedy: {AGAIN}"))
}
