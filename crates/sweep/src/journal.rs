//! What is done of a part that is not: one line of JSON a point, in the order they ended.
//!
//! A line counts when it is whole. The last one of a process that was killed may not be; it is cut
//! off before anything is added behind it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::row::PointRows;

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    /// Opens or makes the journal of a part, and gives what is in it.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Vec<PointRows>)> {
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let mut points = Vec::new();
        let mut good = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let whole = line.ends_with(b"\n").then(|| serde_json::from_slice(line).ok()).flatten();
            let Some(point) = whole else { break };
            points.push(point);
            good += line.len();
        }
        file.set_len(good as u64)?;
        file.seek(SeekFrom::Start(good as u64))?;
        Ok((Self(file), points))
    }

    /// Adds a point. One write a line: a killed process leaves at most one torn line.
    pub(crate) fn add(&mut self, point: &PointRows) -> io::Result<()> {
        let mut line = serde_json::to_vec(point)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
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
        let (mut journal, none) = Journal::open(&dir).unwrap();
        assert!(none.is_empty());
        journal.add(&point).unwrap();
        journal.0.write_all(b"{\"point\":4,\"ro").unwrap();
        let (mut journal, found) = Journal::open(&dir).unwrap();
        assert_eq!(found, [point.clone()]);
        journal.add(&point).unwrap();
        assert_eq!(Journal::open(&dir).unwrap().1, [point.clone(), point]);
        std::fs::remove_file(&dir).unwrap();
    }
}
