//! `format` files of trace events: where a field is in an event's bytes.
//!
//! Field offsets differ between kernels, so none is assumed. The text comes from the kernel, but no text makes this
//! code panic.

/// Place of a field in the event's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// Its value as an unsigned number, of 1, 2, 4 or 8 bytes, little endian.
    pub fn unsigned(&self, data: &[u8]) -> Option<u64> {
        let mut word = [0; 8];
        word.get_mut(..self.size)?.copy_from_slice(self.bytes(data)?);
        Some(u64::from_le_bytes(word))
    }

    /// The same as a signed number.
    pub fn signed(&self, data: &[u8]) -> Option<i64> {
        let unused = 64_u32.checked_sub(8 * u32::try_from(self.size).ok()?)?;
        let word = self.unsigned(data)?;
        Some(if unused == 64 { 0 } else { (word << unused).cast_signed() >> unused })
    }

    /// Its bytes.
    pub fn bytes<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        data.get(self.offset..self.offset.checked_add(self.size)?)
    }
}

/// A format file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The event's number in the common field [`TYPE`](Self::TYPE).
    pub id: u16,
    fields: Vec<(String, Field)>,
    symbols: Vec<Symbols>,
}

/// Names of numbers, from a format's `__print_symbolic`.
pub type Symbols = Vec<(i64, String)>;

/// Most names kept of one format.
const MOST_SYMBOLS: usize = 1024;

impl Format {
    /// The field that says which event it is: the first of every format.
    pub const TYPE: Field = Field { offset: 0, size: 2 };

    /// Parses the file's text; `None` if it is no format, or its events do not begin with their type.
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = None;
        let mut fields = Vec::new();
        for line in text.lines() {
            if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if let Some(declaration) = declaration(line) {
                let name = name(declaration)?;
                let (offset, size) = place(line)?;
                fields.push((name.to_owned(), Field { offset, size }));
            }
        }
        let format = Self { id: id?, fields, symbols: symbols(text) };
        (format.field("common_type")? == Self::TYPE).then_some(format)
    }

    /// The tables of names (`__print_symbolic`) in the order of the text.
    pub fn symbols(&self) -> &[Symbols] {
        &self.symbols
    }

    /// A field by name.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, f)| *f)
    }
}

fn declaration(line: &str) -> Option<&str> {
    let (declaration, _) = line.trim_start().strip_prefix("field:")?.split_once(';')?;
    Some(declaration)
}

/// The tables in `__print_symbolic(REC->field, { 0, "NAME" }, { 0x40 + 1, "OTHER" })`.
fn symbols(text: &str) -> Vec<Symbols> {
    let mut left = MOST_SYMBOLS;
    let tables = text.split("__print_symbolic(").skip(1).map(|rest| {
        // The kernel's names have no parentheses and no braces.
        let table = rest.split(')').next().unwrap_or_default();
        let entries = table.split('{').skip(1).map_while(|entry| {
            let (number, rest) = entry.split_once(',')?;
            let name = rest.split('"').nth(1)?;
            Some((number_of(number)?, name.to_owned()))
        });
        let table: Symbols = entries.take(left).collect();
        left -= table.len();
        table
    });
    tables.collect()
}

/// A number in C syntax: `28`, `0x040 + 1`, `-1`.
fn number_of(text: &str) -> Option<i64> {
    let mut sum = 0_i64;
    for term in text.split('+').map(str::trim) {
        let value = match term.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).ok()?,
            None => term.parse().ok()?,
        };
        sum = sum.checked_add(value)?;
    }
    Some(sum)
}

/// The name in a C declaration: `char next_comm[16]`, `pid_t pid`.
fn name(declaration: &str) -> Option<&str> {
    let last = declaration.split_whitespace().next_back()?;
    let name = last.split('[').next()?.trim_start_matches('*');
    (!name.is_empty()).then_some(name)
}

/// Whether a line declares this field.
pub(crate) fn declares(line: &str, field: &str) -> bool {
    declaration(line).and_then(name) == Some(field)
}

/// Offset and size in a line.
pub(crate) fn place(line: &str) -> Option<(usize, usize)> {
    let number = |key: &str| {
        let (_, rest) = line.split_once(key)?;
        rest.split(';').next()?.trim().parse().ok()
    };
    Some((number("offset:")?, number("size:")?))
}

#[cfg(test)]
mod tests {
    use super::Format;
    use proptest::prelude::*;

    const SWITCH: &str = "name: sched_switch\nID: 372\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\n\
        print fmt: \"prev_comm=%s\", REC->prev_comm\n";

    #[test]
    fn fields_are_found_and_read() {
        let format = Format::parse(SWITCH).unwrap();
        assert_eq!(format.id, 372);
        let mut event = vec![0; 40];
        event[0..2].copy_from_slice(&372_u16.to_le_bytes());
        event[8..12].copy_from_slice(b"make");
        event[24..28].copy_from_slice(&(-7_i32).to_le_bytes());
        event[32..40].copy_from_slice(&256_u64.to_le_bytes());
        assert_eq!(Format::TYPE.unsigned(&event), Some(372));
        assert_eq!(format.field("prev_pid").unwrap().signed(&event), Some(-7));
        assert_eq!(format.field("prev_state").unwrap().unsigned(&event), Some(256));
        let comm = format.field("prev_comm").unwrap();
        assert!(comm.bytes(&event).unwrap().starts_with(b"make\0"));
        assert_eq!(comm.unsigned(&event), None, "no number has 16 bytes");
        assert_eq!(format.field("prev_state").unwrap().signed(&event[..36]), None, "cut short");
        assert_eq!(format.field("next_pid"), None);
    }

    #[test]
    fn names_of_numbers_are_found() {
        let print = "print fmt: \"%s%s\", (REC->isa == 1) ? __print_symbolic(REC->r & 0xffff, \
            { 0, \"EXCEPTION_NMI\" }, { 12, \"HLT\" }) : __print_symbolic(REC->r, \
            { 0x078, \"hlt\" }, { 0x040 + 14, \"PF excp\" }, { -1, \"bad\" }), REC->isa ? \" \" : \"\"";
        let format = Format::parse(&SWITCH.replace("print fmt:", print)).unwrap();
        let names = |table: &[(i64, &str)]| {
            table.iter().map(|(n, name)| (*n, (*name).to_owned())).collect::<Vec<_>>()
        };
        let vmx = names(&[(0, "EXCEPTION_NMI"), (12, "HLT")]);
        let svm = names(&[(0x78, "hlt"), (0x4e, "PF excp"), (-1, "bad")]);
        assert_eq!(format.symbols(), [vmx, svm]);
        assert!(Format::parse(SWITCH).unwrap().symbols().is_empty());
    }

    #[test]
    fn what_is_no_format_is_refused() {
        for text in ["", "ID: 3\n", &SWITCH.replace("ID: 372", "ID: 99999999"), "field:;offset:1;"]
        {
            assert_eq!(Format::parse(text), None, "{text}");
        }
        assert_eq!(Format::parse(&SWITCH.replacen("size:2", "size:4", 1)), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "(ID: [0-9]{1,6}\n|\tfield:[a-z \\[\\]*]{0,20};\t?(offset:[0-9]{0,21};)?(size:[0-9]{0,21};)?\n|__print_symbolic\\(|\\{ [-0-9x+ ]{0,20}, \"[A-Z]*\" \\}|.{0,9}\n){0,8}",
            data in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            if let Some(format) = Format::parse(&text) {
                for (name, _) in format.fields.clone() {
                    let field = format.field(&name).unwrap();
                    let _ = (field.unsigned(&data), field.signed(&data), field.bytes(&data));
                }
            }
        }
    }
}
