//! The finished points of an incomplete part: one line of JSON for each, in the order in which they ended.
//!
//! Only whole lines count. The last line of a killed process may be torn; it is cut off before anything is added. The
//! first line says which part of which sweep it is; a journal with another first line is started again.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek, SeekFrom, Write};
use std::path::Path;

use vcoop_model::file;

/// Most bytes of a line: a point has some kilobytes.
const MOST_LINE: u64 = 64 << 20;

use crate::row::PointRows;

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    /// Opens or makes the journal of a part, and returns its points. `mark`: its first line.
    pub(crate) fn open(path: &Path, mark: &str) -> io::Result<(Self, Vec<PointRows>)> {
        // The path may be no regular file, and opening a pipe would block for ever.
        if path.symlink_metadata().is_ok() {
            file::open(path)?;
        }
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options?;
        let (points, good) = whole_lines(&file, mark)?;
        file.set_len(good)?;
        file.seek(SeekFrom::Start(good))?;
        if good == 0 {
            file.write_all(head(mark).as_bytes())?;
        }
        Ok((Self(file), points))
    }

    /// Reads the points in the journal of a part without changing it; none if it does not exist.
    pub(crate) fn read(path: &Path, mark: &str) -> io::Result<Vec<PointRows>> {
        match file::open(path) {
            Ok(file) => Ok(whole_lines(&file, mark)?.0),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Adds a point. One write for each line: a killed process leaves at most one torn line.
    pub(crate) fn add(&mut self, point: &PointRows) -> io::Result<()> {
        let mut line = serde_json::to_vec(point)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// The first line.
fn head(mark: &str) -> String {
    format!("{}\n", serde_json::Value::from(mark))
}

/// The points of the whole lines behind the first one, and where these lines end.
fn whole_lines(file: &File, mark: &str) -> io::Result<(Vec<PointRows>, u64)> {
    let head = head(mark);
    let (mut points, mut good, mut line) = (Vec::new(), 0, Vec::new());
    let mut lines = BufReader::new(file);
    loop {
        line.clear();
        let read = lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut line)?;
        if good == 0 {
            if line != head.as_bytes() {
                break;
            }
        } else {
            let whole = line.ends_with(b"\n").then(|| serde_json::from_slice(&line).ok());
            let Some(point) = whole.flatten() else { break };
            points.push(point);
        }
        good += read as u64;
    }
    Ok((points, good))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_cut_off_and_the_rest_survives_exactly() {
        let dir = std::env::temp_dir().join(format!("vcoop-journal-{}", std::process::id()));
        let _ = std::fs::remove_file(&dir);
        let mut point = PointRows::failed(3, "no".to_owned());
        point.rows[0].numbers = vec![(1, 0.1 + 0.2), (2, 1e-300)];
        let (mut journal, none) = Journal::open(&dir, "0 of 1").unwrap();
        assert!(none.is_empty());
        journal.add(&point).unwrap();
        journal.0.write_all(b"{\"point\":4,\"ro").unwrap();
        let torn = std::fs::read(&dir).unwrap();
        assert_eq!(Journal::read(&dir, "0 of 1").unwrap(), [point.clone()]);
        assert_eq!(std::fs::read(&dir).unwrap(), torn, "somebody may be writing it");
        let (mut journal, found) = Journal::open(&dir, "0 of 1").unwrap();
        assert_eq!(found, [point.clone()]);
        journal.add(&point).unwrap();
        assert_eq!(Journal::open(&dir, "0 of 1").unwrap().1, [point.clone(), point]);
        assert!(Journal::open(&dir, "1 of 1").unwrap().1.is_empty(), "of another part");
        assert!(Journal::open(&dir, "0 of 1").unwrap().1.is_empty());
        std::fs::remove_file(&dir).unwrap();
        assert!(Journal::read(&dir, "0 of 1").unwrap().is_empty(), "there is none");
    }
}
