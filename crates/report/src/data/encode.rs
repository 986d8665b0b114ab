//! Encodings of Parquet, those that samples need. They are the specification's
//! ([`Encodings.md`](https://parquet.apache.org/docs/file-format/data-pages/encodings/)): the `parquet`
//! crate has all of them for any type, at several times the CPU time, and a run that writes its
//! samples is to cost little more than one that does not.

/// Values in a block of deltas, and in each of its parts that have a width of their own.
const BLOCK: usize = 128;
const MINI: usize = 32;

/// `DELTA_BINARY_PACKED`: the first value, then differences, less the least of their block, in as many
/// bits as the largest of 32 needs. Neighbours that are equal cost next to nothing.
pub(super) fn deltas(values: &[i64], out: &mut Vec<u8>) {
    let (first, rest) = values.split_first().map_or((0, values), |(first, rest)| (*first, rest));
    unsigned(BLOCK as u64, out);
    unsigned((BLOCK / MINI) as u64, out);
    unsigned(values.len() as u64, out);
    signed(first, out);
    let mut before = first;
    for block in rest.chunks(BLOCK) {
        let mut deltas = [0i64; BLOCK];
        for (delta, value) in deltas.iter_mut().zip(block) {
            // Readers wrap, too.
            *delta = value.wrapping_sub(before);
            before = *value;
        }
        let deltas = &deltas[..block.len()];
        let least = deltas.iter().copied().min().unwrap_or(0);
        signed(least, out);
        let widths = out.len();
        out.extend([0; BLOCK / MINI]);
        for (i, mini) in deltas.chunks(MINI).enumerate() {
            let mut above = [0u64; MINI];
            let mut all = 0;
            for (above, delta) in above.iter_mut().zip(mini) {
                *above = delta.wrapping_sub(least) as u64;
                all |= *above;
            }
            let width = u64::BITS - all.leading_zeros();
            out[widths + i] = width as u8;
            packed(above, width, out);
        }
    }
}

/// The hybrid of runs and packed bits: one run of one value that fits into a byte.
pub(super) fn run(value: u8, times: usize, out: &mut Vec<u8>) {
    unsigned((times as u64) << 1, out);
    out.push(value);
}

/// The same: all values packed, each in so many bits.
pub(super) fn hybrid(values: impl ExactSizeIterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    let n = values.len();
    unsigned(((n.div_ceil(8) as u64) << 1) | 1, out);
    packed(values.chain(std::iter::repeat_n(0, n.next_multiple_of(8) - n)), width, out);
}

/// Values in so many bits each, from the lowest bit of the first byte on; the last byte is filled up.
pub(super) fn packed(values: impl IntoIterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    if width == 0 {
        return;
    }
    let (mut held, mut bits) = (0u64, 0);
    for value in values {
        held |= value << bits;
        bits += width;
        if bits >= u64::BITS {
            out.extend(held.to_le_bytes());
            bits -= u64::BITS;
            held = if bits == 0 { 0 } else { value >> (width - bits) };
        }
    }
    out.extend(&held.to_le_bytes()[..bits.div_ceil(8) as usize]);
}

/// Bits that hold every value up to this; at least one, which every reader takes.
pub(super) fn width(largest: u64) -> u32 {
    (u64::BITS - largest.leading_zeros()).max(1)
}

/// A number in groups of seven bits, lowest first.
fn unsigned(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The same with the sign in the lowest bit.
fn signed(value: i64, out: &mut Vec<u8>) {
    unsigned(((value << 1) ^ (value >> 63)) as u64, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn the_specifications_examples() {
        // 1, 2, 3, 4, 5: deltas of 1, no bits.
        let five = bytes(|out| deltas(&[1, 2, 3, 4, 5], out));
        assert_eq!(five, [0x80, 0x01, 4, 5, 2, 2, 0, 0, 0, 0]);
        // 7, 5, 3, 1, 2, 3, 4, 5: the least delta is -2, the others 0 and 3 above it.
        let eight = bytes(|out| deltas(&[7, 5, 3, 1, 2, 3, 4, 5], out));
        let packed = [0b1100_0000, 0b0011_1111, 0, 0, 0, 0, 0, 0];
        assert_eq!(eight[..10], [0x80, 0x01, 4, 8, 14, 3, 2, 0, 0, 0]);
        assert_eq!(eight[10..], packed);
        // 0 to 7 in three bits.
        assert_eq!(
            bytes(|out| super::packed(0..8, 3, out)),
            [0b1000_1000, 0b1100_0110, 0b1111_1010]
        );
    }

    #[test]
    fn runs_and_packed_bits() {
        assert_eq!(bytes(|out| run(1, 300, out)), [0xd8, 0x04, 1]);
        assert_eq!(bytes(|out| hybrid([1, 0, 1].into_iter(), 1, out)), [3, 0b101]);
        assert_eq!(bytes(|out| hybrid([0; 9].into_iter(), 1, out)), [5, 0, 0]);
        assert_eq!([0, 1, 2, 255, 256].map(width), [1, 1, 2, 8, 9]);
    }

    #[test]
    fn bits_cross_words() {
        let out = bytes(|out| packed([u64::MAX >> 1, 1, 2], 63, out));
        let word = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap());
        assert_eq!((word(0), word(8)), (u64::MAX, 0x8000_0000_0000_0000));
        assert_eq!(out.len(), 24);
        assert_eq!(bytes(|out| packed([5; 2], 64, out)).len(), 16);
    }
}
