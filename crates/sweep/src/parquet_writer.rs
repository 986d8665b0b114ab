//! Writes rows as Parquet. The same rows give the same bytes.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::TypePtr;

use crate::columns::{AxisColumn, Cell, Kind};
use crate::part::digest;
use crate::row::{NUMBERS, PointRows, Row};

type Result<T> = std::result::Result<T, ParquetError>;

/// A point with the values of its axes.
#[derive(Clone, Debug)]
pub(crate) struct LocatedPoint<'a> {
    pub(crate) cells: Vec<Cell>,
    pub(crate) point: &'a PointRows,
}

/// The schema of a sweep's dataset.
fn schema(axes: &[AxisColumn]) -> Result<TypePtr> {
    let mut text = "message vcoop_sweep {\n  required int64 point;\n".to_owned();
    for axis in axes {
        let kind = match axis.kind {
            Kind::Int => "int64",
            Kind::Double => "double",
            Kind::Bool => "boolean",
            Kind::Text => "binary",
        };
        let note = if axis.kind == Kind::Text { " (UTF8)" } else { "" };
        text += &format!("  required {kind} {}{note};\n", axis.name);
    }
    for name in ["policy", "probe", "metric", "unit"] {
        text += &format!("  optional binary {name} (UTF8);\n");
    }
    text +=
        "  required int64 repeats;\n  required boolean settled;\n  optional binary best (UTF8);\n";
    text += "  optional int64 count;\n  optional int64 missed;\n  optional boolean guest;\n";
    for name in NUMBERS {
        text += &format!("  optional double {name};\n");
    }
    text += "  optional binary error (UTF8);\n}";
    parse_message_type(&text).map(Arc::new)
}

/// The bytes of a part, with `mark` to identify it, and a digest of its rows.
pub(crate) fn bytes(
    axes: &[AxisColumn],
    mark: KeyValue,
    points: &[LocatedPoint<'_>],
) -> Result<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("vcoop {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(vec![mark]))
        .build();
    let mut file = SerializedFileWriter::new(Vec::new(), schema(axes)?, Arc::new(properties))?;
    fill(file.next_row_group()?, axes, points)?;
    file.flush()?;
    let digest = digest(file.inner());
    file.append_key_value_metadata(digest);
    file.into_inner()
}

/// Writes every column of a group.
fn fill<W: Write + Send>(
    group: SerializedRowGroupWriter<'_, W>,
    axes: &[AxisColumn],
    points: &[LocatedPoint<'_>],
) -> Result<()> {
    let rows: Vec<(&LocatedPoint<'_>, &Row)> =
        points.iter().flat_map(|p| p.point.rows.iter().map(move |row| (p, row))).collect();
    let mut group = Group(group);
    group.ints(rows.iter().map(|(p, _)| i64::from(p.point.point)))?;
    for (i, axis) in axes.iter().enumerate() {
        group.axis(axis.kind, rows.iter().map(|(p, _)| &p.cells[i]))?;
    }
    for of in [
        |r: &Row| r.policy.clone(),
        |r: &Row| r.probe.clone(),
        |r: &Row| r.metric.clone(),
        |r: &Row| r.unit.clone(),
    ] {
        group.maybe_texts(rows.iter().map(|(_, row)| of(row)))?;
    }
    group.ints(rows.iter().map(|(_, row)| i64::from(row.repeats)))?;
    group.bools(rows.iter().map(|(p, _)| p.point.settled))?;
    group.maybe_texts(rows.iter().map(|(p, _)| p.point.best.clone()))?;
    let count = |n: Option<u64>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    group.optional::<Int64Type>(rows.iter().map(|(_, row)| count(row.count)))?;
    group.optional::<Int64Type>(rows.iter().map(|(_, row)| count(row.missed)))?;
    group.optional::<BoolType>(rows.iter().map(|(_, row)| row.guest))?;
    for i in 0..NUMBERS.len() {
        let of = |row: &Row| row.numbers.iter().find(|(n, _)| usize::from(*n) == i).map(|n| n.1);
        group.optional::<DoubleType>(rows.iter().map(|(_, row)| of(row)))?;
    }
    group.maybe_texts(rows.iter().map(|(_, row)| row.error.clone()))?;
    group.0.close().map(drop)
}

/// Columns of a row group, written one after the other in the order of the schema.
struct Group<'a, W: Write + Send>(SerializedRowGroupWriter<'a, W>);

impl<W: Write + Send> Group<'_, W> {
    fn column<T: parquet::data_type::DataType>(
        &mut self,
        values: &[T::T],
        levels: Option<&[i16]>,
    ) -> Result<()> {
        let missing = || ParquetError::General("more columns than the schema has".to_owned());
        let mut column = self.0.next_column()?.ok_or_else(missing)?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }

    fn optional<T: parquet::data_type::DataType>(
        &mut self,
        values: impl Iterator<Item = Option<T::T>>,
    ) -> Result<()> {
        let mut there = Vec::new();
        let mut levels = Vec::new();
        for value in values {
            levels.push(i16::from(value.is_some()));
            there.extend(value);
        }
        self.column::<T>(&there, Some(&levels))
    }

    fn ints(&mut self, values: impl Iterator<Item = i64>) -> Result<()> {
        self.column::<Int64Type>(&values.collect::<Vec<_>>(), None)
    }

    fn bools(&mut self, values: impl Iterator<Item = bool>) -> Result<()> {
        self.column::<BoolType>(&values.collect::<Vec<_>>(), None)
    }

    fn maybe_texts(&mut self, values: impl Iterator<Item = Option<String>>) -> Result<()> {
        self.optional::<ByteArrayType>(values.map(|v| v.map(|t| ByteArray::from(t.into_bytes()))))
    }

    fn axis<'c>(&mut self, kind: Kind, cells: impl Iterator<Item = &'c Cell>) -> Result<()> {
        // Cells are of their column's kind: `columns::cell` makes both from the same values.
        match kind {
            Kind::Int => self.ints(cells.map(|c| if let Cell::Int(i) = c { *i } else { 0 })),
            Kind::Bool => self.bools(cells.map(|c| matches!(c, Cell::Bool(true)))),
            Kind::Double => {
                let of = |c: &Cell| if let Cell::Double(x) = c { *x } else { f64::NAN };
                self.column::<DoubleType>(&cells.map(of).collect::<Vec<_>>(), None)
            }
            Kind::Text => {
                let of = |c: &Cell| match c {
                    Cell::Text(text) => ByteArray::from(text.clone().into_bytes()),
                    _ => ByteArray::new(),
                };
                self.column::<ByteArrayType>(&cells.map(of).collect::<Vec<_>>(), None)
            }
        }
    }
}
