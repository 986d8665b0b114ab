//! How a guest finds the host, and tells the host where its area is.
//!
//! *Discovery* is by CPUID. Hypervisor leaves come in blocks of 256 from `0x4000_0000` on, each
//! with a 12-byte signature in `ebx:ecx:edx` of its first leaf; a guest walks the blocks until it
//! finds [`SIGNATURE`]. So this interface coexists with KVM's and Hyper-V's.
//!
//! *Registration* is by an MSR of each vCPU, which the VMM handles in user space. The guest area is a page of guest
//! memory that the guest chooses. The host area is a page that the *host* chooses, outside of guest memory, because it
//! must be mapped read-only: the window's address is in CPUID, and vCPU `n` (by APIC order, as the VMM numbers them)
//! has its page `n`.

use core::fmt;

use crate::layout::PAGE_SIZE;

/// Signature of our block of CPUID leaves, in `ebx`, `ecx`, `edx`.
pub const SIGNATURE: [u8; 12] = *b"vcoopvcoop\0\0";

/// First leaf of our block, unless another interface uses it: then the next free multiple of [`LEAF_STEP`].
pub const LEAF_BASE: u32 = 0x4000_0200;

/// First leaf of the first block that a guest looks at.
pub const LEAF_FIRST: u32 = 0x4000_0000;

/// Distance between blocks.
pub const LEAF_STEP: u32 = 0x100;

/// Number of blocks a guest looks at.
pub const LEAF_BLOCKS: u32 = 256;

/// Write: [`Registration`] value. Read: the value in force.
pub const MSR_REGISTER: u32 = 0x7663_6f00;

/// Write of any value: the guest has stored request = unboost and wants its boost to end now. Read: 0.
pub const MSR_NOTIFY: u32 = 0x7663_6f01;

/// Bit 0 of [`MSR_REGISTER`]: the address counts.
pub const REGISTER_ENABLE: u64 = 1;

/// The `[eax, ebx, ecx, edx]` of one leaf.
pub type Leaf = [u32; 4];

/// What the host can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// Boosts on the guest's request, and maintains status and ticket.
    pub const BOOST: Self = Self(1 << 0);
    /// Fires the deadline in the guest area.
    pub const EXITLESS_TIMER: Self = Self(1 << 1);
    /// Maintains the preferred-vCPU mask.
    pub const PREFERRED: Self = Self(1 << 2);
    /// Maintains the steal clock.
    pub const STEAL: Self = Self(1 << 3);

    /// Whether all of `other` are included.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What CPUID says, decoded.
///
/// ```text
/// base + 0: eax = base + 1; ebx, ecx, edx = signature
/// base + 1: eax = protocol << 16 | ABI version; ebx = features;
///           ecx, edx = low and high half of the host window's guest-physical address
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the host.
    pub abi: u16,
    /// [`PROTOCOL`](crate::PROTOCOL) of the host.
    pub protocol: u16,
    /// What it can do.
    pub features: Features,
    /// Guest-physical address of the host areas; page `n` is vCPU `n`'s.
    pub host_window: u64,
}

impl Discovery {
    /// The two leaves that a VMM puts at `base` and `base + 1`.
    pub const fn leaves(self, base: u32) -> [Leaf; 2] {
        let s = SIGNATURE;
        [
            [
                base + 1,
                u32::from_le_bytes([s[0], s[1], s[2], s[3]]),
                u32::from_le_bytes([s[4], s[5], s[6], s[7]]),
                u32::from_le_bytes([s[8], s[9], s[10], s[11]]),
            ],
            [
                (self.protocol as u32) << 16 | self.abi as u32,
                self.features.0,
                self.host_window as u32,
                (self.host_window >> 32) as u32,
            ],
        ]
    }

    /// Looks for the interface, given a function that executes CPUID. `None`: the host has none, or claims the
    /// signature without the second leaf.
    pub fn find(mut cpuid: impl FnMut(u32) -> Leaf) -> Option<Self> {
        let ours = |leaf: Leaf| {
            let mut text = [0; 12];
            for (part, register) in text.chunks_exact_mut(4).zip(&leaf[1..]) {
                part.copy_from_slice(&register.to_le_bytes());
            }
            text == SIGNATURE
        };
        let mut bases = (0..LEAF_BLOCKS).map(|i| LEAF_FIRST + i * LEAF_STEP);
        let base = bases.find(|base| {
            let leaf = cpuid(*base);
            ours(leaf) && leaf[0] > *base
        })?;
        let [eax, ebx, ecx, edx] = cpuid(base + 1);
        Some(Self {
            abi: eax as u16,
            protocol: (eax >> 16) as u16,
            features: Features(ebx),
            host_window: u64::from(ecx) | u64::from(edx) << 32,
        })
    }

    /// Guest-physical address of a vCPU's host area.
    pub const fn host_area(self, vcpu: u32) -> u64 {
        self.host_window + vcpu as u64 * PAGE_SIZE
    }
}

/// A vCPU's registration: where its guest area is, if anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// No area; the status stays disabled.
    #[default]
    None,
    /// The page at this guest-physical address.
    Area(u64),
}

/// Why a value written to [`MSR_REGISTER`] is refused. The guest gets a general protection fault
/// for it, and the registration in force stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Bits 1 to 11 must be zero: a page address and the enable bit.
    Unaligned,
    /// Without the enable bit, only 0 is defined.
    NotEnabled,
    /// The page is not, or not wholly, in guest memory.
    BeyondMemory,
    /// Another vCPU has registered the page: each word has one writer.
    Overlapping,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unaligned => "guest area registration: bits 1 to 11 are not zero",
            Self::NotEnabled => "guest area registration: address without the enable bit",
            Self::BeyondMemory => "guest area registration: page outside of guest memory",
            Self::Overlapping => "guest area registration: page belongs to another vCPU",
        })
    }
}

impl core::error::Error for RegisterError {}

impl Registration {
    /// What a write of `value` to [`MSR_REGISTER`] means, for a guest with `guest_mem_size` bytes
    /// of memory from address 0. `others`: the registrations in force of the VM's other vCPUs.
    ///
    /// 0 ends the registration. The same page again is a new registration: the host forgets what
    /// it knew of the guest and starts over. Any other page replaces the old one, which the host
    /// does not read any more.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    pub fn write<'a>(
        value: u64,
        guest_mem_size: u64,
        others: impl IntoIterator<Item = &'a Self>,
    ) -> Result<Self, RegisterError> {
        if value == 0 {
            return Ok(Self::None);
        }
        if value & REGISTER_ENABLE == 0 {
            return Err(RegisterError::NotEnabled);
        }
        let gpa = value & !REGISTER_ENABLE;
        if !gpa.is_multiple_of(PAGE_SIZE) {
            return Err(RegisterError::Unaligned);
        }
        if gpa.checked_add(PAGE_SIZE).is_none_or(|end| end > guest_mem_size) {
            return Err(RegisterError::BeyondMemory);
        }
        // Pages are aligned, so two of them overlap only if they are the same.
        if others.into_iter().any(|o| *o == Self::Area(gpa)) {
            return Err(RegisterError::Overlapping);
        }
        Ok(Self::Area(gpa))
    }

    /// What a read of [`MSR_REGISTER`] gives; writing it back restores the registration, which is
    /// all that migration needs of it.
    pub const fn read(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Area(gpa) => gpa | REGISTER_ENABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEM: u64 = 16 << 20;

    fn write(value: u64) -> Result<Registration, RegisterError> {
        Registration::write(value, MEM, &[Registration::None, Registration::Area(0x5000)])
    }

    #[test]
    fn registration_and_its_end() {
        assert_eq!(write(0x1000 | 1), Ok(Registration::Area(0x1000)));
        assert_eq!(write(1), Ok(Registration::Area(0)));
        assert_eq!(write(0), Ok(Registration::None));
        assert_eq!(write(write(0x1000 | 1).unwrap().read()), Ok(Registration::Area(0x1000)));
    }

    #[test]
    fn hostile_values_are_refused() {
        assert_eq!(write(0x1000), Err(RegisterError::NotEnabled));
        assert_eq!(write(0x1001 | 2), Err(RegisterError::Unaligned));
        assert_eq!(write(0x1800 | 1), Err(RegisterError::Unaligned));
        assert_eq!(write(MEM | 1), Err(RegisterError::BeyondMemory));
        assert_eq!(write((MEM - PAGE_SIZE) | 1), Ok(Registration::Area(MEM - PAGE_SIZE)));
        assert_eq!(write(u64::MAX << 12 | 1), Err(RegisterError::BeyondMemory));
        assert_eq!(write(u64::MAX), Err(RegisterError::Unaligned));
        assert_eq!(write(0x5000 | 1), Err(RegisterError::Overlapping));
    }

    #[test]
    fn memory_that_ends_within_a_page_does_not_hold_it() {
        let none: [Registration; 0] = [];
        assert_eq!(Registration::write(0x1001, 0x1fff, &none), Err(RegisterError::BeyondMemory));
    }

    #[test]
    fn found_in_any_block_and_only_with_the_signature() {
        let d = Discovery {
            abi: 1,
            protocol: 1,
            features: Features::BOOST.with(Features::STEAL),
            host_window: 0x1_2345_6000,
        };
        for base in [LEAF_BASE, LEAF_FIRST, LEAF_FIRST + 255 * LEAF_STEP] {
            let leaves = d.leaves(base);
            let cpuid = |n: u32| match n.wrapping_sub(base) {
                i @ 0..2 => leaves[i as usize],
                _ => [0x4000_0001, 0x4b4d_564b, 0x564b_4d56, 0x4d],
            };
            assert_eq!(Discovery::find(cpuid), Some(d));
        }
        assert_eq!(Discovery::find(|_| [0; 4]), None);
        let mut truncated = d.leaves(LEAF_BASE)[0];
        truncated[0] = LEAF_BASE;
        let lone = |n| if n == LEAF_BASE { truncated } else { [0; 4] };
        assert_eq!(Discovery::find(lone), None);
        assert!(d.features.contains(Features::STEAL) && !d.features.contains(Features::PREFERRED));
        assert_eq!(d.host_area(3), 0x1_2345_9000);
    }
}
