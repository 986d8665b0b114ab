//! One column of some rows as Parquet keeps it: a page of values, before it a dictionary where values
//! repeat.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::encode;

type Result<T> = std::result::Result<T, ParquetError>;

/// Where columns are written to.
pub(super) type Sink = TrackedWrite<BufWriter<File>>;

/// A new file for columns.
pub(super) fn sink(path: &Path) -> Result<Sink> {
    Ok(TrackedWrite::new(BufWriter::with_capacity(1 << 16, File::create(path)?)))
}

/// A column of some rows. `there`: which rows have a value, where not all have one.
#[derive(Clone, Debug)]
pub(super) enum Column<'a> {
    /// The same value in all rows, as [`text`] or a number's bytes.
    One(Vec<u8>),
    /// Names by number.
    Named {
        /// The names.
        names: &'a [String],
        /// Numbers.
        values: &'a [u32],
        /// See the type.
        there: Option<&'a [bool]>,
    },
    /// Times.
    Numbers {
        /// Nanoseconds.
        values: &'a [i64],
        /// See the type.
        there: Option<&'a [bool]>,
        /// Keep the smallest and the largest, for queries that filter by them.
        bounds: bool,
    },
    /// Yes or no.
    Flags(&'a [bool]),
}

/// A text as a plain value.
pub(super) fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + text.len());
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

impl Column<'_> {
    /// Writes so many rows of it; `of`: its place in the schema. Offsets in what comes back are those of
    /// the sink.
    pub(super) fn write(
        &self,
        rows: usize,
        of: &ColumnDescPtr,
        sink: &mut Sink,
    ) -> Result<ColumnCloseResult> {
        let mut chunk = Chunk { writer: SerializedPageWriter::new(sink), sizes: (0, 0) };
        let dictionary = match self.dictionary() {
            Some((names, count)) => {
                let page = |buf: Vec<u8>| Page::DictionaryPage {
                    buf: buf.into(),
                    num_values: count,
                    encoding: Encoding::PLAIN,
                    is_sorted: false,
                };
                Some(chunk.write(&names, page)?)
            }
            None => None,
        };
        let (values, encoding) = self.values(rows);
        let page = |buf: Vec<u8>| Page::DataPage {
            buf: buf.into(),
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let data = chunk.write(&values, page)?;
        let mut encodings = vec![Encoding::RLE, encoding];
        encodings.extend(dictionary.map(|_| Encoding::PLAIN));
        let mut metadata = ColumnChunkMetaData::builder(of.clone())
            .set_compression(Compression::SNAPPY)
            .set_encodings(encodings)
            .set_num_values(rows as i64)
            .set_total_uncompressed_size(chunk.sizes.0 as i64)
            .set_total_compressed_size(chunk.sizes.1 as i64)
            .set_dictionary_page_offset(dictionary.map(|at| at as i64))
            .set_data_page_offset(data as i64);
        if let Self::Numbers { values, bounds: true, .. } = self {
            let (min, max) = (values.iter().min().copied(), values.iter().max().copied());
            metadata = metadata.set_statistics(Statistics::new(min, max, None, Some(0), false));
        }
        Ok(ColumnCloseResult {
            bytes_written: chunk.sizes.1,
            rows_written: rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        })
    }

    /// The dictionary, and how many values it has.
    fn dictionary(&self) -> Option<(Vec<u8>, u32)> {
        match self {
            Self::One(value) => Some((value.clone(), 1)),
            // A reader may mind one without entries.
            Self::Named { names: [], .. } => Some((text(""), 1)),
            Self::Named { names, .. } => {
                Some((names.iter().flat_map(|name| text(name)).collect(), names.len() as u32))
            }
            Self::Numbers { .. } | Self::Flags(_) => None,
        }
    }

    /// Levels and values, and how they are encoded.
    fn values(&self, rows: usize) -> (Vec<u8>, Encoding) {
        let mut out = Vec::new();
        match self {
            Self::One(_) => {
                out.push(1);
                encode::run(0, rows, &mut out);
                (out, Encoding::RLE_DICTIONARY)
            }
            Self::Named { names, values, there } => {
                levels(*there, &mut out);
                let width = encode::width(names.len().saturating_sub(1) as u64);
                out.push(width as u8);
                encode::hybrid(values.iter().map(|n| u64::from(*n)), width, &mut out);
                (out, Encoding::RLE_DICTIONARY)
            }
            Self::Numbers { values, there, .. } => {
                levels(*there, &mut out);
                encode::deltas(values, &mut out);
                (out, Encoding::DELTA_BINARY_PACKED)
            }
            Self::Flags(flags) => {
                encode::packed(flags.iter().map(|f| u64::from(*f)), 1, &mut out);
                (out, Encoding::PLAIN)
            }
        }
    }
}

/// Which rows have a value: their number of bytes, then the flags.
fn levels(there: Option<&[bool]>, out: &mut Vec<u8>) {
    let Some(there) = there else { return };
    let at = out.len();
    out.extend([0; 4]);
    encode::hybrid(there.iter().map(|f| u64::from(*f)), 1, out);
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// Pages of a column.
struct Chunk<'a> {
    writer: SerializedPageWriter<'a, BufWriter<File>>,
    /// Bytes before and after compression, headers included.
    sizes: (u64, u64),
}

impl Chunk<'_> {
    /// Writes a page; where it begins.
    fn write(&mut self, plain: &[u8], page: impl FnOnce(Vec<u8>) -> Page) -> Result<u64> {
        let packed = snap::raw::Encoder::new()
            .compress_vec(plain)
            .map_err(|e| ParquetError::General(e.to_string()))?;
        let written = self.writer.write_page(CompressedPage::new(page(packed), plain.len()))?;
        self.sizes.0 += written.uncompressed_size as u64;
        self.sizes.1 += written.compressed_size as u64;
        Ok(written.offset)
    }
}
