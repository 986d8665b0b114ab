//! `samples.parquet`: one row for each sample. Each run encodes its rows as it goes on; at the end the encoded columns
//! are concatenated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use vcoop_experiment::runner::RunId;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::Part;
use vcoop_model::trace_event::SampleEvent;

/// Rows that a run holds in memory: some 4 MB.
const GROUP: usize = 1 << 14;

/// Version of the schema, in the file's metadata as `vcoop.schema`.
pub const SCHEMA: &str = "vcoop.samples/1";

type Result<T> = std::result::Result<T, ParquetError>;

/// The columns, in Parquet's schema language.
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

/// A new file of rows.
fn rows(file: File) -> Result<SerializedFileWriter<BufWriter<File>>> {
    let file = BufWriter::with_capacity(1 << 16, file);
    let schema = Arc::new(parse_message_type(&message())?);
    let note = KeyValue::new("vcoop.schema".to_owned(), SCHEMA.to_owned());
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("vcoop ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![note]));
    // A dictionary of times is as large as they are; their differences are small.
    for field in schema.get_fields().iter().filter(|field| field.name().ends_with("_ns")) {
        let column = ColumnPath::from(field.name());
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    // Bounds, for queries that filter by them.
    for name in ["due_ns", "latency_ns"] {
        properties = properties
            .set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
    }
    SerializedFileWriter::new(file, schema, Arc::new(properties.build()))
}

/// Encodes the samples of one run.
pub(super) struct Writer {
    file: SerializedFileWriter<BufWriter<File>>,
    run: RunId,
    /// Begin of the measurement, from the start of the run.
    zero: Ns,
    policy: ByteArray,
    cell: ByteArray,
    /// Names as values, which rows share.
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
    /// 1 if another thread ran before it.
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
            file: rows(File::create(path)?)?,
            run,
            zero: plan.warmup_ns,
            policy: plan.policy_name.as_str().into(),
            cell: cell.join(" ").as_str().into(),
            names: BTreeMap::new(),
            rows: Rows::default(),
        })
    }

    pub(super) fn push(&mut self, sample: &SampleEvent<'_>) -> Result<()> {
        let Self { names, rows, .. } = self;
        rows.probe.push(shared(names, sample.probe));
        rows.due.push(sample.due_ns.saturating_sub(self.zero) as i64);
        rows.latency.push(sample.latency_ns as i64);
        rows.open.push(sample.open);
        rows.ahead.push(sample.behind.is_some().into());
        if let Some((who, ns)) = sample.behind {
            rows.behind.push(shared(names, who));
            rows.behind_ns.push(ns as i64);
        }
        for (column, ns) in rows.parts.iter_mut().zip(sample.parts) {
            column.push(*ns as i64);
        }
        if rows.due.len() == GROUP { self.flush() } else { Ok(()) }
    }

    /// Encodes the rows in memory.
    fn flush(&mut self) -> Result<()> {
        let rows = &mut self.rows;
        let n = rows.due.len();
        if n == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for text in [&self.run.backend.into(), &self.policy, &self.cell] {
            column::<ByteArrayType>(&mut group, &mut vec![text.clone(); n], None)?;
        }
        column::<Int32Type>(&mut group, &mut vec![self.run.repeat as i32; n], None)?;
        column::<Int64Type>(&mut group, &mut vec![self.run.seed as i64; n], None)?;
        column::<ByteArrayType>(&mut group, &mut rows.probe, None)?;
        column::<Int64Type>(&mut group, &mut rows.due, None)?;
        column::<Int64Type>(&mut group, &mut rows.latency, None)?;
        column::<BoolType>(&mut group, &mut rows.open, None)?;
        column::<ByteArrayType>(&mut group, &mut rows.behind, Some(&rows.ahead))?;
        column::<Int64Type>(&mut group, &mut rows.behind_ns, Some(&rows.ahead))?;
        rows.ahead.clear();
        for part in &mut rows.parts {
            column::<Int64Type>(&mut group, part, None)?;
        }
        group.close().map(drop)
    }

    /// Ends the file.
    pub(super) fn close(mut self) -> Result<()> {
        self.flush()?;
        self.file.close().map(drop)
    }
}

/// A name as a value.
fn shared(names: &mut BTreeMap<String, ByteArray>, name: &str) -> ByteArray {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    names.entry(name.to_owned()).or_insert(name.into()).clone()
}

/// Encodes the next column of a group, and clears its values without freeing their memory. `there`: see
/// [`Rows::ahead`].
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, BufWriter<File>>,
    values: &mut Vec<T::T>,
    there: Option<&[i16]>,
) -> Result<()> {
    let missing = || ParquetError::General("more columns than the schema has".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, there, None)?;
    values.clear();
    column.close()
}

/// Concatenates these files, as they are encoded.
pub(super) fn join<'a>(into: File, parts: impl Iterator<Item = &'a Path>) -> Result<()> {
    let mut writer = rows(into)?;
    for part in parts {
        let file = File::open(part)?;
        for group in ParquetMetaDataReader::new().parse_and_finish(&file)?.row_groups() {
            let mut to = writer.next_row_group()?;
            for column in group.columns() {
                let encoded = ColumnCloseResult {
                    bytes_written: column.compressed_size() as u64,
                    rows_written: group.num_rows() as u64,
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                to.append_column(&file, encoded)?;
            }
            to.close()?;
        }
    }
    writer.close().map(drop)
}
