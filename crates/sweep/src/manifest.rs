//! The manifest of a sweep's folder, and the names of its files.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vcoop_model::file;

use crate::columns::AxisColumn;
use crate::job::{Job, fnv};
use vcoop_model::limits::MAX_POINTS;

/// Name and version of the format.
pub const SCHEMA: &str = "vcoop.sweep/1";

/// Its file in the folder.
pub const MANIFEST: &str = "manifest.json";

/// Least and most points of a part: so many that there are few files, and few enough to hold in memory.
const PART_POINTS: (u32, u32) = (16, 1024);

/// Content of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of vcoop.
    pub version: String,
    /// Build that simulated the points, by version and sources; empty in manifests of old builds.
    #[serde(default)]
    pub build: String,
    /// Name of the sweep.
    pub name: String,
    /// Number of points.
    pub points: u32,
    /// Points in each part but the last.
    pub part_points: u32,
    /// Columns of the axes.
    pub axes: Vec<AxisColumn>,
    /// Policies, in order.
    pub policies: Vec<String>,
    /// Policy that ratios are taken to.
    pub baseline: String,
    /// Digest of the sweep file (FNV-1a, 64 bits).
    pub spec_hash: String,
    /// Files that any point uses ([`Job::files`]): name and digest.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The sweep file.
    pub spec: String,
    /// The base scenario's file.
    pub scenario: String,
}

impl Manifest {
    /// The manifest of a sweep whose points `build` simulates.
    pub fn new(job: &Job, build: &str) -> Self {
        let points = job.points();
        let (least, most) = PART_POINTS;
        Self {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build.to_owned(),
            name: job.sweep.name.clone(),
            points,
            part_points: (points / 128).next_power_of_two().clamp(least, most),
            axes: job.columns.clone(),
            policies: job.policies.clone(),
            baseline: job.baseline.clone(),
            spec_hash: fnv(job.sweep.text.as_bytes()),
            files: job.files.clone(),
            spec: job.sweep.text.clone(),
            scenario: job.base_text.clone(),
        }
    }

    /// What is impossible in it, in a few words.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        match () {
            () if self.part_points == 0 => Some("its parts have no points"),
            () if self.points == 0 || u64::from(self.points) > MAX_POINTS => {
                Some("its number of points")
            }
            () if self.policies.is_empty() => Some("it has no policies"),
            () => None,
        }
    }

    /// The points of a part.
    pub(crate) fn range(&self, part: u32) -> std::ops::Range<u32> {
        let first = part.saturating_mul(self.part_points);
        first..first.saturating_add(self.part_points).min(self.points)
    }

    /// Number of parts.
    pub fn parts(&self) -> u32 {
        self.points.div_ceil(self.part_points)
    }
}

pub(crate) fn part_name(part: u32) -> String {
    format!("part-{part:06}.parquet")
}

pub(crate) fn journal_name(part: u32) -> String {
    format!("part-{part:06}.journal")
}

/// Why a folder cannot be read, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// Reads the manifest of a folder.
///
/// # Errors
///
/// It is not a sweep's folder.
pub fn manifest(dir: &Path) -> Result<Manifest, Unreadable> {
    let path = dir.join(MANIFEST);
    let text = file::bytes(&path, file::MOST_DOCUMENT).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Unreadable(format!(
            "cannot read {}: {e}\n  remedy: give a folder that `vcoop sweep --out` wrote",
            path.display()
        )),
        _ => cannot_read(&path, &e),
    })?;
    let none = |why: String| Unreadable(format!("{} is none of a sweep: {why}", path.display()));
    let json: serde_json::Value = serde_json::from_slice(&text).map_err(|e| none(e.to_string()))?;
    let schema = json.get("schema").and_then(serde_json::Value::as_str).unwrap_or_default();
    if schema != SCHEMA {
        return Err(none(format!("its schema is `{schema}`, and this vcoop reads {SCHEMA}")));
    }
    let manifest: Manifest = serde_json::from_value(json).map_err(|e| none(e.to_string()))?;
    manifest.wrong().map_or(Ok(manifest), |why| Err(none(why.to_owned())))
}

pub(crate) fn cannot_read(path: &Path, error: &io::Error) -> Unreadable {
    Unreadable(format!("cannot read {}: {}", path.display(), file::error_text(error)))
}
