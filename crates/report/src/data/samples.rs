//! `samples.parquet`: one row a sample. Each run encodes its own rows while it goes on; at the end
//! encoded columns are put one behind the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};
use vcoop_experiment::runner::RunId;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::Part;
use vcoop_model::trace_event::SampleEvent;

use super::column::{self, Column, Sink};

/// Rows that a run holds at a time: some 3 MB.
const GROUP: usize = 1 << 14;

/// Version of the schema, in the file's metadata as `vcoop.schema`.
pub const SCHEMA: &str = "vcoop.samples/1";

type Result<T> = std::result::Result<T, ParquetError>;

/// The columns, in the language of Parquet's own schemas.
fn message() -> String {
    let mut text = String::from(
        "message samples {
            required binary backend (STRING);
            required binary policy (STRING);
            required binary cell (STRING);
            required int32 repeat;
            required int64 seed (INTEGER(64,false));
            required binary probe (STRING);
            required int64 due_ns;
            required int64 latency_ns;
            required boolean open;
            optional binary behind (STRING);
            optional int64 behind_ns;\n",
    );
    for part in Part::ALL {
        text.push_str(&format!("required int64 {}_ns;\n", part.name()));
    }
    text + "}"
}

fn schema() -> Result<SchemaDescPtr> {
    let schema = parse_message_type(&message())?;
    Ok(Arc::new(SchemaDescriptor::new(Arc::new(schema))))
}

fn properties() -> WriterProperties {
    let note = KeyValue::new("vcoop.schema".to_owned(), SCHEMA.to_owned());
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("vcoop ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![note]))
        .build()
}

/// Rows as they were encoded, a file's next ones.
#[derive(Debug)]
pub(super) struct Group {
    rows: u64,
    columns: Vec<ColumnCloseResult>,
}

/// Encodes the samples of one run.
pub(super) struct Writer {
    file: Sink,
    schema: SchemaDescPtr,
    groups: Vec<Group>,
    run: RunId,
    /// When the measurement begins, from the start of the run.
    zero: Ns,
    policy: String,
    cell: String,
    probes: Names,
    labels: Names,
    rows: Rows,
}

/// Names by number.
#[derive(Debug, Default)]
struct Names {
    numbers: BTreeMap<String, u32>,
    names: Vec<String>,
}

/// Rows that are not encoded yet, by column.
#[derive(Default)]
struct Rows {
    probe: Vec<u32>,
    due: Vec<i64>,
    latency: Vec<i64>,
    open: Vec<bool>,
    /// Whether somebody was ahead of it.
    ahead: Vec<bool>,
    behind: Vec<u32>,
    behind_ns: Vec<i64>,
    parts: [Vec<i64>; Part::COUNT],
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }
}

impl Writer {
    pub(super) fn new(path: &Path, run: RunId, plan: &Plan) -> Result<Self> {
        let cell: Vec<String> = plan.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
        Ok(Self {
            file: column::sink(path)?,
            schema: schema()?,
            groups: Vec::new(),
            run,
            zero: plan.warmup_ns,
            policy: plan.policy_name.clone(),
            cell: cell.join(" "),
            probes: Names::default(),
            labels: Names::default(),
            rows: Rows::default(),
        })
    }

    pub(super) fn push(&mut self, sample: &SampleEvent<'_>) -> Result<()> {
        let rows = &mut self.rows;
        rows.probe.push(self.probes.number(sample.probe));
        rows.due.push(sample.due_ns.saturating_sub(self.zero) as i64);
        rows.latency.push(sample.latency_ns as i64);
        rows.open.push(sample.open);
        rows.ahead.push(sample.behind.is_some());
        if let Some((who, ns)) = sample.behind {
            rows.behind.push(self.labels.number(who));
            rows.behind_ns.push(ns as i64);
        }
        for (column, ns) in rows.parts.iter_mut().zip(sample.parts) {
            column.push(*ns as i64);
        }
        if rows.due.len() == GROUP { self.flush() } else { Ok(()) }
    }

    /// Encodes what is held.
    fn flush(&mut self) -> Result<()> {
        let rows = &self.rows;
        let n = rows.due.len();
        if n == 0 {
            return Ok(());
        }
        let (repeat, seed) = ((self.run.repeat as i32).to_le_bytes(), self.run.seed.to_le_bytes());
        let mut columns = vec![
            Column::One(column::text(self.run.backend)),
            Column::One(column::text(&self.policy)),
            Column::One(column::text(&self.cell)),
            Column::One(repeat.to_vec()),
            Column::One(seed.to_vec()),
            Column::Named { names: &self.probes.names, values: &rows.probe, there: None },
            Column::Numbers { values: &rows.due, there: None, bounds: true },
            Column::Numbers { values: &rows.latency, there: None, bounds: true },
            Column::Flags(&rows.open),
            Column::Named {
                names: &self.labels.names,
                values: &rows.behind,
                there: Some(&rows.ahead),
            },
            Column::Numbers { values: &rows.behind_ns, there: Some(&rows.ahead), bounds: false },
        ];
        let part = |values| Column::Numbers { values, there: None, bounds: false };
        columns.extend(rows.parts.iter().map(|values| part(values)));
        let mut group = Group { rows: n as u64, columns: Vec::with_capacity(columns.len()) };
        for (column, of) in columns.iter().zip(self.schema.columns()) {
            group.columns.push(column.write(n, of, &mut self.file)?);
        }
        self.groups.push(group);
        self.rows.clear();
        Ok(())
    }

    /// Ends the file; what is in it, in order.
    pub(super) fn close(mut self) -> Result<Vec<Group>> {
        self.flush()?;
        self.file.flush()?;
        Ok(self.groups)
    }
}

impl Rows {
    /// Forgets the rows, and keeps the room.
    fn clear(&mut self) {
        let Self { probe, due, latency, open, ahead, behind, behind_ns, parts } = self;
        [probe, behind].into_iter().for_each(Vec::clear);
        [due, latency, behind_ns].into_iter().chain(parts).for_each(Vec::clear);
        [open, ahead].into_iter().for_each(Vec::clear);
    }
}

/// Puts files with these rows one behind the other, as they are encoded.
pub(super) fn join<'a>(
    path: &Path,
    parts: impl Iterator<Item = (&'a Path, Vec<Group>)>,
) -> Result<()> {
    let file = BufWriter::with_capacity(1 << 16, File::create(path)?);
    let root = schema()?.root_schema_ptr();
    let mut writer = SerializedFileWriter::new(file, root, Arc::new(properties()))?;
    for (part, groups) in parts {
        let file = File::open(part)?;
        for group in groups {
            let mut to = writer.next_row_group()?;
            debug_assert!(group.columns.iter().all(|c| c.rows_written == group.rows));
            for column in group.columns {
                to.append_column(&file, column)?;
            }
            to.close()?;
        }
    }
    writer.close().map(drop)
}
