//! Summary counts of a dataset.

use std::collections::BTreeMap;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::record::Field;
use vcoop_experiment::judge::LEAST_REPEATS;

use crate::manifest::{Unreadable, manifest, part_name};
use crate::part::{self, Part};

/// Counts over the points of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Points.
    pub points: u32,
    /// Points that failed.
    pub failed: u32,
    /// Points whose comparisons were not precise enough at the end.
    pub unsettled: u32,
    /// Points with too few repeats to decide which policy is best.
    pub few: u32,
    /// Other points at which a policy is best, by its name; the empty name if none is.
    pub best: BTreeMap<String, u32>,
}

/// Columns a tally needs.
const COLUMNS: [&str; 5] = ["point", "repeats", "settled", "best", "error"];

impl Tally {
    /// Counts the complete parts of a folder. After an interruption, one between them may be missing.
    ///
    /// # Errors
    ///
    /// It is not a sweep's folder, or a part cannot be read.
    pub fn of(dir: &Path) -> Result<Self, Unreadable> {
        let manifest = manifest(dir)?;
        let mut tally = Self::default();
        for part in 0..manifest.parts() {
            if let Some(found) = part::open(dir, &manifest, part)? {
                let path = dir.join(part_name(part));
                tally.add(&found).map_err(|e| part::damaged(&path, &e))?;
            }
        }
        Ok(tally)
    }

    fn add(&mut self, file: &Part) -> Result<(), ParquetError> {
        let mut last = None;
        for row in part::rows(file, |name| COLUMNS.contains(&name))? {
            let row = row?;
            let field = |name: &str| row.get_column_iter().find(|(n, _)| *n == name);
            let point = field("point").map(|(_, field)| field.to_string());
            if point == last {
                continue;
            }
            last = point;
            self.points += 1;
            if matches!(field("error"), Some((_, Field::Str(_)))) {
                self.failed += 1;
                continue;
            }
            self.unsettled += u32::from(matches!(field("settled"), Some((_, Field::Bool(false)))));
            let repeats = field("repeats").and_then(|(_, field)| field.to_string().parse().ok());
            if repeats.is_some_and(|n: u32| n < LEAST_REPEATS) {
                self.few += 1;
                continue;
            }
            let best = match field("best") {
                Some((_, Field::Str(name))) => name.clone(),
                _ => String::new(),
            };
            *self.best.entry(best).or_default() += 1;
        }
        Ok(())
    }
}
