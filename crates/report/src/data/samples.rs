//! `samples.parquet`: one row a sample. Each run encodes its own rows while it goes on; at the end
//! encoded columns are put one behind the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::{
    SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter,
};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use vcoop_lab::runner::RunId;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::Part;
use vcoop_model::span::SampleEvent;

/// Rows that a run holds at a time: some 3 MB.
const GROUP: usize = 1 << 14;

/// Version of the schema, in the file's metadata as `vcoop.schema`.
pub const SCHEMA: &str = "vcoop.samples/1";

type Output = BufWriter<File>;
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
        text.push_str(&format!("required int64 {};\n", column(part)));
    }
    text + "}"
}

fn column(part: Part) -> String {
    format!("{}_ns", part.name())
}

/// Times hardly repeat and are mostly small: deltas pack well, and dictionaries cost more than they
/// save. Statistics are kept where a query would filter.
fn properties() -> WriterProperties {
    let note = KeyValue::new("vcoop.schema".to_owned(), SCHEMA.to_owned());
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("vcoop ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![note]));
    for name in ["due_ns", "latency_ns"] {
        let path = ColumnPath::from(name);
        builder = builder.set_column_statistics_enabled(path, EnabledStatistics::Chunk);
    }
    let parts = Part::ALL.into_iter().map(column);
    for name in ["due_ns", "latency_ns", "behind_ns"].into_iter().map(str::to_owned).chain(parts) {
        let path = ColumnPath::from(name);
        builder = builder
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    builder.build()
}

fn open(path: &Path) -> Result<SerializedFileWriter<Output>> {
    let schema = parse_message_type(&message())?;
    let file = BufWriter::with_capacity(1 << 16, File::create(path)?);
    SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties()))
}

/// Encodes the samples of one run.
pub(super) struct Writer {
    file: SerializedFileWriter<Output>,
    run: RunId,
    /// When the measurement begins, from the start of the run.
    zero: Ns,
    policy: ByteArray,
    cell: ByteArray,
    /// Probes and labels so far.
    names: BTreeMap<String, ByteArray>,
    rows: Rows,
}

/// Rows that are not encoded yet, by column.
#[derive(Default)]
struct Rows {
    probe: Vec<ByteArray>,
    due: Vec<i64>,
    latency: Vec<i64>,
    open: Vec<bool>,
    /// Whether somebody was ahead of it.
    ahead: Vec<i16>,
    behind: Vec<ByteArray>,
    behind_ns: Vec<i64>,
    parts: [Vec<i64>; Part::COUNT],
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Writer {
    pub(super) fn new(path: &Path, run: RunId, plan: &Plan) -> Result<Self> {
        let cell: Vec<String> = plan.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
        Ok(Self {
            file: open(path)?,
            run,
            zero: plan.warmup_ns,
            policy: plan.policy_name.as_str().into(),
            cell: cell.join(" ").as_str().into(),
            names: BTreeMap::new(),
            rows: Rows::default(),
        })
    }

    fn name(&mut self, name: &str) -> ByteArray {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        self.names.entry(name.to_owned()).or_insert(name.into()).clone()
    }

    pub(super) fn push(&mut self, sample: &SampleEvent<'_>) -> Result<()> {
        let probe = self.name(sample.probe);
        self.rows.probe.push(probe);
        self.rows.due.push(sample.due_ns.saturating_sub(self.zero) as i64);
        self.rows.latency.push(sample.latency_ns as i64);
        self.rows.open.push(sample.open);
        self.rows.ahead.push(i16::from(sample.behind.is_some()));
        if let Some((who, ns)) = sample.behind {
            let who = self.name(who);
            self.rows.behind.push(who);
            self.rows.behind_ns.push(ns as i64);
        }
        for (column, ns) in self.rows.parts.iter_mut().zip(sample.parts) {
            column.push(*ns as i64);
        }
        if self.rows.due.len() == GROUP { self.flush() } else { Ok(()) }
    }

    /// Encodes what is held.
    fn flush(&mut self) -> Result<()> {
        let rows = &mut self.rows;
        let n = rows.due.len();
        if n == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        text(&mut group, &vec![ByteArray::from(self.run.backend); n], None)?;
        text(&mut group, &vec![self.policy.clone(); n], None)?;
        text(&mut group, &vec![self.cell.clone(); n], None)?;
        let repeats = vec![self.run.repeat as i32; n];
        with(&mut group, |c| c.typed::<Int32Type>().write_batch(&repeats, None, None))?;
        numbers(&mut group, &vec![self.run.seed as i64; n], None)?;
        text(&mut group, &rows.probe, None)?;
        numbers(&mut group, &rows.due, None)?;
        numbers(&mut group, &rows.latency, None)?;
        with(&mut group, |c| c.typed::<BoolType>().write_batch(&rows.open, None, None))?;
        text(&mut group, &rows.behind, Some(&rows.ahead))?;
        numbers(&mut group, &rows.behind_ns, Some(&rows.ahead))?;
        for part in &rows.parts {
            numbers(&mut group, part, None)?;
        }
        group.close()?;
        rows.clear();
        Ok(())
    }

    pub(super) fn close(mut self) -> Result<()> {
        self.flush()?;
        self.file.close().map(drop)
    }
}

impl Rows {
    /// Forgets the rows, and keeps the room.
    fn clear(&mut self) {
        let Self { probe, due, latency, open, ahead, behind, behind_ns, parts } = self;
        [probe, behind].into_iter().for_each(Vec::clear);
        [due, latency, behind_ns].into_iter().chain(parts).for_each(Vec::clear);
        open.clear();
        ahead.clear();
    }
}

type Group<'a> = SerializedRowGroupWriter<'a, Output>;

fn text(group: &mut Group<'_>, values: &[ByteArray], levels: Option<&[i16]>) -> Result<()> {
    with(group, |c| c.typed::<ByteArrayType>().write_batch(values, levels, None))
}

fn numbers(group: &mut Group<'_>, values: &[i64], levels: Option<&[i16]>) -> Result<()> {
    with(group, |c| c.typed::<Int64Type>().write_batch(values, levels, None))
}

fn with(
    group: &mut Group<'_>,
    write: impl FnOnce(&mut SerializedColumnWriter<'_>) -> Result<usize>,
) -> Result<()> {
    let missing = || ParquetError::General("more values than columns".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    write(&mut column)?;
    column.close()
}

/// Puts files with these columns one behind the other, as they are encoded.
pub(super) fn join(path: &Path, parts: &[PathBuf]) -> Result<()> {
    let mut writer = open(path)?;
    for part in parts {
        let file = File::open(part)?;
        let metadata = SerializedFileReader::new(file.try_clone()?)?.metadata().clone();
        for rows in metadata.row_groups() {
            let mut group = writer.next_row_group()?;
            for column in rows.columns() {
                let encoded = ColumnCloseResult {
                    bytes_written: column.compressed_size() as u64,
                    rows_written: rows.num_rows() as u64,
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                group.append_column(&file, encoded)?;
            }
            group.close()?;
        }
    }
    writer.close().map(drop)
}
