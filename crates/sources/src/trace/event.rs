//! Decodes the trace events that are used.

use super::format::{Field, Format, Symbols};

/// A thread id of the kernel; 0 is the idle thread of each CPU.
pub type Tid = i32;

/// A thread's name, as the kernel has it: up to 15 arbitrary bytes and a zero.
pub type Comm = [u8; 16];

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// TSC.
    pub time: u64,
    /// The CPU that wrote it.
    pub cpu: u32,
    /// What happened.
    pub kind: EventKind,
}

/// How a thread leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchOut {
    /// The thread is still runnable.
    Runnable,
    /// The thread sleeps, or has ended.
    Asleep,
    /// The thread sleeps uninterruptibly: in a page fault, for I/O, or for a lock of the kernel.
    Blocked,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The CPU goes from one thread to another.
    Switch {
        /// Thread that had the CPU.
        prev: Tid,
        /// How `prev` leaves it.
        leaves: SwitchOut,
        /// Thread that gets the CPU.
        next: Tid,
        /// Name of `next`.
        comm: Comm,
    },
    /// A thread is being woken; written by the waker, perhaps on another CPU.
    Waking {
        /// Thread that is woken.
        tid: Tid,
        /// CPU that it is to run on.
        cpu: u32,
        /// Thread that wakes it; `None`: an interrupt does, or the idle thread.
        by: Option<Tid>,
    },
    /// A woken thread is on a run queue.
    Wakeup {
        /// Thread that is woken.
        tid: Tid,
        /// CPU of that queue.
        cpu: u32,
    },
    /// A vCPU's thread enters guest mode.
    Entry {
        /// The thread.
        tid: Tid,
    },
    /// A vCPU's thread has left guest mode.
    Exit {
        /// The thread.
        tid: Tid,
        /// Exit reason, if the kernel reports it.
        reason: Option<Reason>,
    },
    /// A vCPU's halt is over. During a halt the kernel polls before it sleeps.
    HaltOver {
        /// The thread.
        tid: Tid,
        /// Length of the halt in nanoseconds.
        ns: u64,
    },
    /// Events of this CPU were lost, after the previous one and before this time.
    Lost {
        /// TSC of the previous event.
        since: u64,
    },
}

/// Bits of `common_flags` of an event in a hard interrupt or an NMI. Work of a soft interrupt is mostly for the thread
/// that it interrupted.
const INTERRUPT: u64 = 0x48;

/// Why a vCPU left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// Instruction set of the number: 1 for VMX, else SVM.
    pub isa: u32,
    /// The number.
    pub number: u32,
}

impl Reason {
    /// VMX has flags above its numbers.
    const VMX: u32 = 1;

    fn new(number: u32, isa: u32) -> Self {
        Self { isa, number: if isa == Self::VMX { number & 0xffff } else { number } }
    }

    /// Its name in the tables of the event's format, or its number.
    pub(super) fn name(self, tables: &[Symbols]) -> String {
        let table = if self.isa == Self::VMX { tables.first() } else { tables.get(1) };
        let is = |n: i64| n == i64::from(self.number) || n == i64::from(self.number.cast_signed());
        let found = table.and_then(|table| table.iter().find(|(n, _)| is(*n)));
        found.map_or_else(|| self.number.to_string(), |(_, name)| name.clone())
    }
}

/// Bits of `prev_state` that say why a thread does not run; without any it is runnable, preempted or
/// not (the kernel reports that in a bit above these).
const BLOCKED: u64 = 0xff;

/// Bit for an uninterruptible sleep: `D` in ps.
const UNINTERRUPTIBLE: u64 = 2;

/// Fields of an event, by kind.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Switch { prev: Field, state: Field, next: Field, comm: Field },
    Waking { tid: Field, cpu: Field, by: Option<(Field, Field)> },
    Wakeup { tid: Field, cpu: Field },
    Entry { tid: Field },
    Exit { tid: Field, reason: Option<(Field, Field)> },
    HaltOver { tid: Field, ns: Field },
}

/// Decodes events of the formats that it has learned.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoder {
    shapes: Vec<(u16, Shape)>,
}

impl Decoder {
    /// Learns the event of this name; false: the event is unknown, or a field is missing.
    pub(super) fn learn(&mut self, name: &str, format: &Format) -> bool {
        let shape = || {
            let field = |name| format.field(name);
            Some(match name {
                "sched_switch" => Shape::Switch {
                    prev: field("prev_pid")?,
                    state: field("prev_state")?,
                    next: field("next_pid")?,
                    comm: field("next_comm")?,
                },
                "sched_waking" => Shape::Waking {
                    tid: field("pid")?,
                    cpu: field("target_cpu")?,
                    by: field("common_pid").zip(field("common_flags")),
                },
                "sched_wakeup" => Shape::Wakeup { tid: field("pid")?, cpu: field("target_cpu")? },
                "kvm_entry" => Shape::Entry { tid: field("common_pid")? },
                "kvm_exit" => Shape::Exit {
                    tid: field("common_pid")?,
                    reason: field("exit_reason").zip(field("isa")),
                },
                "kvm_vcpu_wakeup" => {
                    Shape::HaltOver { tid: field("common_pid")?, ns: field("ns")? }
                }
                _ => return None,
            })
        };
        let Some(shape) = shape() else { return false };
        self.shapes.push((format.id, shape));
        true
    }

    /// Decodes an event's bytes; `None` for an unknown event, or one that is cut short.
    pub(super) fn decode(&self, data: &[u8]) -> Option<EventKind> {
        let id = u16::try_from(Format::TYPE.unsigned(data)?).ok()?;
        let (_, shape) = self.shapes.iter().find(|(i, _)| *i == id)?;
        let tid = |f: &Field| Tid::try_from(f.signed(data)?).ok();
        let cpu = |f: &Field| u32::try_from(f.signed(data)?).ok();
        Some(match shape {
            Shape::Switch { prev, state, next, comm } => {
                let mut name = Comm::default();
                let bytes = comm.bytes(data)?;
                let n = bytes.len().min(name.len());
                name[..n].copy_from_slice(&bytes[..n]);
                let leaves = match state.unsigned(data)? & BLOCKED {
                    0 => SwitchOut::Runnable,
                    state if state & UNINTERRUPTIBLE != 0 => SwitchOut::Blocked,
                    _ => SwitchOut::Asleep,
                };
                EventKind::Switch { prev: tid(prev)?, leaves, next: tid(next)?, comm: name }
            }
            Shape::Waking { tid: t, cpu: c, by } => {
                let by = by.as_ref().and_then(|(by, flags)| {
                    let interrupt = flags.unsigned(data)? & INTERRUPT != 0;
                    tid(by).filter(|by| !interrupt && *by != 0)
                });
                EventKind::Waking { tid: tid(t)?, cpu: cpu(c)?, by }
            }
            Shape::Wakeup { tid: t, cpu: c } => EventKind::Wakeup { tid: tid(t)?, cpu: cpu(c)? },
            Shape::Entry { tid: t } => EventKind::Entry { tid: tid(t)? },
            Shape::Exit { tid: t, reason } => {
                let number = |f: Field| u32::try_from(f.unsigned(data)?).ok();
                let reason =
                    reason.and_then(|(n, isa)| Some(Reason::new(number(n)?, number(isa)?)));
                EventKind::Exit { tid: tid(t)?, reason }
            }
            Shape::HaltOver { tid: t, ns } => {
                EventKind::HaltOver { tid: tid(t)?, ns: ns.unsigned(data)? }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoder, EventKind, SwitchOut};
    use crate::trace::format::Format;

    fn format() -> Format {
        Format::parse(
            "ID: 7\n field:unsigned short common_type; offset:0; size:2;\n \
             field:int prev_pid; offset:4; size:4;\n field:long prev_state; offset:8; size:8;\n \
             field:char next_comm[16]; offset:16; size:16;\n field:int next_pid; offset:32; size:4;",
        )
        .unwrap()
    }

    fn switch(state: u64) -> Vec<u8> {
        let mut data = vec![7, 0, 0, 0];
        data.extend(41_u32.to_le_bytes());
        data.extend(state.to_le_bytes());
        data.extend(*b"swapper/0\0\0\0\0\0\0\0");
        data.extend(0_u32.to_le_bytes());
        data
    }

    #[test]
    fn a_switch_tells_who_still_wants_the_cpu() {
        let mut decoder = Decoder::default();
        assert!(decoder.learn("sched_switch", &format()));
        // Running, preempted, interruptible, uninterruptible, dead.
        for (state, left) in [
            (0, SwitchOut::Runnable),
            (0x100, SwitchOut::Runnable),
            (1, SwitchOut::Asleep),
            (2, SwitchOut::Blocked),
            (0x10, SwitchOut::Asleep),
        ] {
            let what = decoder.decode(&switch(state)).unwrap();
            let EventKind::Switch { prev, leaves, next, comm } = what else { panic!("{what:?}") };
            assert_eq!((prev, leaves, next, &comm[..7]), (41, left, 0, b"swapper".as_slice()));
        }
    }

    #[test]
    fn an_exit_tells_its_reason_by_name_where_there_is_one() {
        let format = Format::parse(
            "ID: 9\n field:unsigned short common_type; offset:0; size:2;\n \
             field:int common_pid; offset:4; size:4;\n \
             field:unsigned int exit_reason; offset:8; size:4;\n field:u32 isa; offset:12; size:4;\n \
             print fmt: __print_symbolic(REC->r, { 12, \"HLT\" }) : \
             __print_symbolic(REC->r, { 0x78, \"hlt\" }, { -1, \"invalid\" })",
        )
        .unwrap();
        let mut decoder = Decoder::default();
        assert!(decoder.learn("kvm_exit", &format));
        for (number, isa, name) in [
            (12, 1, "HLT"),
            (0x8000_000c, 1, "HLT"),
            (13, 1, "13"),
            (0x78, 2, "hlt"),
            (u32::MAX, 2, "invalid"),
            (12, 2, "12"),
        ] {
            let words = [9, 77, number, isa];
            let data: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            let what = decoder.decode(&data).unwrap();
            let EventKind::Exit { tid: 77, reason: Some(reason) } = what else {
                panic!("{what:?}")
            };
            assert_eq!(reason.name(format.symbols()), name);
        }
    }

    #[test]
    fn a_waking_tells_who_wakes_unless_it_is_an_interrupt() {
        let format = Format::parse(
            "ID: 8\n field:unsigned short common_type; offset:0; size:2;\n \
             field:unsigned char common_flags; offset:2; size:1;\n \
             field:int common_pid; offset:4; size:4;\n \
             field:pid_t pid; offset:8; size:4;\n field:int target_cpu; offset:12; size:4;",
        )
        .unwrap();
        let mut decoder = Decoder::default();
        assert!(decoder.learn("sched_waking", &format));
        for (flags, current, by) in
            [(0, 7, Some(7)), (0x10, 7, Some(7)), (0x08, 7, None), (0x40, 7, None), (0, 0, None)]
        {
            let mut data = vec![8, 0, flags, 0];
            data.extend([current, 5, 1_u32].into_iter().flat_map(u32::to_le_bytes));
            assert_eq!(decoder.decode(&data), Some(EventKind::Waking { tid: 5, cpu: 1, by }));
        }
    }

    #[test]
    fn what_is_unknown_or_cut_short_is_not_decoded() {
        let mut decoder = Decoder::default();
        assert!(!decoder.learn("sched_waking", &format()), "other fields");
        assert!(!decoder.learn("kvm_emulate_insn", &format()));
        assert_eq!(decoder.decode(&switch(0)), None);
        decoder.learn("sched_switch", &format());
        assert_eq!(decoder.decode(&switch(0)[..35]), None);
        assert_eq!(decoder.decode(&[]), None);
    }
}
