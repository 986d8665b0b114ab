//! `samples.parquet`: one row a sample.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::Part;

use super::spool::{Record, Spools};

/// Rows that are held at a time.
const GROUP: usize = 1 << 16;

/// Version of the schema, in the file's metadata as `vcoop.schema`.
pub const SCHEMA: &str = "vcoop.samples/1";

/// Writes the samples of all runs.
///
/// # Errors
///
/// Why they could not be read or written.
pub(super) fn write(path: &Path, spools: &Spools, plans: &[Plan]) -> Result<u64, String> {
    let fail = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", path.display());
    let file = BufWriter::new(File::create(path).map_err(|e| fail(&e))?);
    let schema = parse_message_type(&message()).map_err(|e| fail(&e))?;
    let note = KeyValue::new("vcoop.schema".to_owned(), SCHEMA.to_owned());
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("vcoop ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![note]))
        .build();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
        .map_err(|e| fail(&e))?;
    let mut rows = 0;
    for run in spools.sorted()? {
        let plan = &plans[run.run.plan];
        let cell: Vec<String> = plan.params.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut group = Group {
            backend: run.run.backend.into(),
            policy: plan.policy_name.as_str().into(),
            cell: cell.join(" ").as_str().into(),
            repeat: run.run.repeat as i32,
            seed: run.run.seed as i64,
            names: run.names.iter().map(|n| n.as_str().into()).collect(),
            records: Vec::new(),
        };
        for record in run.read().map_err(|e| fail(&e))? {
            group.records.push(record.map_err(|e| fail(&e))?);
            if group.records.len() == GROUP {
                rows += group.flush(&mut writer).map_err(|e| fail(&e))?;
            }
        }
        rows += group.flush(&mut writer).map_err(|e| fail(&e))?;
    }
    writer.close().map_err(|e| fail(&e))?;
    Ok(rows)
}

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

/// Rows of one run on their way.
struct Group {
    backend: ByteArray,
    policy: ByteArray,
    cell: ByteArray,
    repeat: i32,
    seed: i64,
    names: Vec<ByteArray>,
    records: Vec<Record>,
}

type Rows<'a> = SerializedRowGroupWriter<'a, BufWriter<File>>;

impl Group {
    fn flush(
        &mut self,
        writer: &mut SerializedFileWriter<BufWriter<File>>,
    ) -> Result<u64, ParquetError> {
        if self.records.is_empty() {
            return Ok(0);
        }
        let mut rows = writer.next_row_group()?;
        let n = self.records.len();
        text(&mut rows, &vec![self.backend.clone(); n], None)?;
        text(&mut rows, &vec![self.policy.clone(); n], None)?;
        text(&mut rows, &vec![self.cell.clone(); n], None)?;
        with(&mut rows, |c| c.typed::<Int32Type>().write_batch(&vec![self.repeat; n], None, None))?;
        with(&mut rows, |c| c.typed::<Int64Type>().write_batch(&vec![self.seed; n], None, None))?;
        let probe = |r: &Record| self.names[r.probe as usize].clone();
        let probes: Vec<ByteArray> = self.records.iter().map(probe).collect();
        text(&mut rows, &probes, None)?;
        self.numbers(&mut rows, |r| r.due)?;
        self.numbers(&mut rows, |r| r.latency)?;
        let open: Vec<bool> = self.records.iter().map(|r| r.open).collect();
        with(&mut rows, |c| c.typed::<BoolType>().write_batch(&open, None, None))?;
        let levels: Vec<i16> =
            self.records.iter().map(|r| i16::from(r.behind.is_some())).collect();
        let behind = self.records.iter().filter_map(|r| r.behind);
        let who: Vec<ByteArray> =
            behind.clone().map(|(who, _)| self.names[who as usize].clone()).collect();
        text(&mut rows, &who, Some(&levels))?;
        let how_long: Vec<i64> = behind.map(|(_, ns)| ns as i64).collect();
        with(&mut rows, |c| {
            c.typed::<Int64Type>().write_batch(&how_long, Some(&levels), None)
        })?;
        for part in Part::ALL {
            self.numbers(&mut rows, |r| r.parts[part as usize])?;
        }
        rows.close()?;
        self.records.clear();
        Ok(n as u64)
    }

    fn numbers(&self, rows: &mut Rows<'_>, of: impl Fn(&Record) -> Ns) -> Result<(), ParquetError> {
        let numbers: Vec<i64> = self.records.iter().map(|r| of(r) as i64).collect();
        with(rows, |c| c.typed::<Int64Type>().write_batch(&numbers, None, None))
    }
}

fn text(
    rows: &mut Rows<'_>,
    values: &[ByteArray],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    with(rows, |c| c.typed::<ByteArrayType>().write_batch(values, levels, None))
}

fn with(
    rows: &mut Rows<'_>,
    write: impl FnOnce(
        &mut parquet::file::writer::SerializedColumnWriter<'_>,
    ) -> Result<usize, ParquetError>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("more values than columns".to_owned());
    let mut column = rows.next_column()?.ok_or_else(missing)?;
    write(&mut column)?;
    column.close()
}
