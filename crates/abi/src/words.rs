//! The facts that the two sides tell each other, and their 64-bit encodings.
//!
//! Decoding is total. A reader cannot refuse a word, because the writer may be hostile, broken or
//! newer; so every pattern of bits has a defined meaning, and bits that have none today are
//! ignored on reading and written as zero.

/// A fact with a 64-bit encoding.
///
/// `from_word(to_word(x)) == x` holds for every value that honours the ranges in its
/// documentation, and `from_word` accepts every word.
pub trait Word: Copy {
    /// Decodes; never panics.
    fn from_word(word: u64) -> Self;
    /// Encodes; reserved bits are zero.
    fn to_word(self) -> u64;
}

/// First word of each area: version and protocol of its writer.
///
/// ```text
/// 63            32 31            16 15             0
/// +---------------+----------------+----------------+
/// | magic "vcop"  | protocol       | ABI version    |
/// +---------------+----------------+----------------+
/// ```
///
/// Written before the area is announced, and not changed while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the writer.
    pub abi: u16,
    /// [`PROTOCOL`](crate::PROTOCOL) of the writer.
    pub protocol: u16,
    /// Whether the magic was there. Without it the other fields mean nothing.
    pub valid: bool,
}

impl Header {
    /// `"vcop"` in ASCII, the first letter in the lowest byte.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"vcop");

    /// The header that this crate writes.
    pub const OURS: Self = Self { abi: crate::ABI_VERSION, protocol: crate::PROTOCOL, valid: true };

    /// Whether a peer with this header has our ABI version and protocol.
    pub fn is_compatible(self) -> bool {
        self == Self::OURS
    }
}

impl Word for Header {
    fn from_word(word: u64) -> Self {
        let valid = (word >> 32) as u32 == Self::MAGIC;
        if !valid {
            return Self { abi: 0, protocol: 0, valid };
        }
        Self { abi: word as u16, protocol: (word >> 16) as u16, valid }
    }

    fn to_word(self) -> u64 {
        if !self.valid {
            return 0;
        }
        u64::from(self.abi) | u64::from(self.protocol) << 16 | u64::from(Self::MAGIC) << 32
    }
}

/// Scheduling class of a guest task, as far as a host cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// No statement. Unknown encodings decode to this.
    #[default]
    None = 0,
    /// SCHED_OTHER and SCHED_BATCH.
    Fair = 1,
    /// SCHED_FIFO.
    Fifo = 2,
    /// SCHED_RR.
    Rr = 3,
    /// SCHED_DEADLINE.
    Deadline = 4,
    /// SCHED_IDLE.
    Idle = 5,
    /// The stop class (migration, CPU hotplug): above everything else in the guest.
    Stop = 6,
}

impl Class {
    /// Whether tasks of this class are latency sensitive by declaration: FIFO, RR, deadline, stop.
    pub fn is_urgent(self) -> bool {
        matches!(self, Self::Fifo | Self::Rr | Self::Deadline | Self::Stop)
    }

    fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Fair,
            2 => Self::Fifo,
            3 => Self::Rr,
            4 => Self::Deadline,
            5 => Self::Idle,
            6 => Self::Stop,
            _ => Self::None,
        }
    }
}

/// Class and priority of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskIntent {
    /// Scheduling class.
    pub class: Class,
    /// FIFO and RR: 1..=99, 99 the most urgent. Fair: nice + 20 (0..=39). Otherwise 0.
    pub prio: u8,
    /// The guest's administrator has declared the task latency sensitive, whatever its class.
    pub declared: bool,
}

impl TaskIntent {
    /// SCHED_OTHER at nice 0.
    pub const FAIR: Self = Self::new(Class::Fair, 20);

    /// Bit of a class byte: declared latency sensitive.
    pub const DECLARED: u8 = 1 << 7;

    /// A task of a class, at a priority in its range, not declared latency sensitive.
    pub const fn new(class: Class, prio: u8) -> Self {
        Self { class, prio, declared: false }
    }

    /// A SCHED_FIFO task. `prio` is brought into 1..=99.
    pub fn fifo(prio: u8) -> Self {
        Self::new(Class::Fifo, prio).canonical()
    }

    /// A SCHED_RR task. `prio` is brought into 1..=99.
    pub fn rr(prio: u8) -> Self {
        Self::new(Class::Rr, prio).canonical()
    }

    /// The same with the priority brought into the range of its class.
    pub fn canonical(self) -> Self {
        let prio = match self.class {
            Class::Fifo | Class::Rr => self.prio.clamp(1, 99),
            Class::Fair => self.prio.min(39),
            Class::None | Class::Deadline | Class::Idle | Class::Stop => 0,
        };
        Self { prio, ..self }
    }

    /// Whether it is latency sensitive: by its class, or because it was declared so.
    pub fn is_urgent(self) -> bool {
        self.declared || self.class.is_urgent()
    }

    /// Orders tasks by how urgent they are, as Linux picks them: stop, deadline, FIFO and RR by priority, fair by nice,
    /// SCHED_IDLE. A declared task comes before all tasks that are not urgent.
    pub fn urgency(self) -> u8 {
        let t = self.canonical();
        match t.class {
            Class::Fair | Class::Idle | Class::None if t.declared => 42,
            Class::Stop => u8::MAX,
            Class::Deadline => u8::MAX - 1,
            Class::Fifo | Class::Rr => 100 + t.prio,
            Class::Fair => 41 - t.prio,
            Class::Idle => 1,
            Class::None => 0,
        }
    }

    fn from_bytes(class: u8, prio: u8) -> Self {
        let declared = class & Self::DECLARED != 0;
        Self { class: Class::from_byte(class & !Self::DECLARED), prio, declared }.canonical()
    }

    fn to_bits(self) -> u64 {
        let t = self.canonical();
        let declared = if t.declared { Self::DECLARED } else { 0 };
        u64::from(t.class as u8 | declared) | u64::from(t.prio) << 8
    }
}

/// What the vCPU runs, and what it is about to run.
///
/// ```text
/// 63   34  33    32            31     24 23      16 15      8 7        0
/// +------+------+-------------+---------+----------+---------+----------+
/// | 0    | IDLE | PENDING     | pending | pending  | running | running  |
/// |      |      | _VALID      | prio    | class    | prio    | class    |
/// +------+------+-------------+---------+----------+---------+----------+
/// ```
///
/// The highest bit of a class byte says that the task was [declared](TaskIntent::declared).
///
/// Both tasks share one word so that "the RT task is no longer pending, because it now runs" is one
/// store: a reader never sees it in neither place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// The running task.
    pub running: TaskIntent,
    /// The most urgent task that was enqueued on this vCPU and has not run yet.
    pub pending: Option<TaskIntent>,
    /// The vCPU is in the guest's idle loop.
    pub idle: bool,
}

impl Intent {
    /// Bit: the pending half has a meaning.
    pub const PENDING_VALID: u64 = 1 << 32;
    /// Bit: the idle loop runs.
    pub const IDLE: u64 = 1 << 33;

    /// Whether the running or the pending task is of an urgent class. An idle vCPU runs nothing,
    /// whatever `running` still says.
    pub fn is_urgent(self) -> bool {
        (!self.idle && self.running.is_urgent()) || self.pending.is_some_and(TaskIntent::is_urgent)
    }
}

impl Word for Intent {
    fn from_word(word: u64) -> Self {
        let [rc, rp, pc, pp, ..] = word.to_le_bytes();
        Self {
            running: TaskIntent::from_bytes(rc, rp),
            pending: (word & Self::PENDING_VALID != 0).then(|| TaskIntent::from_bytes(pc, pp)),
            idle: word & Self::IDLE != 0,
        }
    }

    fn to_word(self) -> u64 {
        let mut word = self.running.to_bits();
        if let Some(pending) = self.pending {
            word |= pending.to_bits() << 16 | Self::PENDING_VALID;
        }
        if self.idle {
            word |= Self::IDLE;
        }
        word
    }
}

/// Urgent tasks that other vCPUs have put on a vCPU's queue.
///
/// ```text
/// 63                               16 15     8 7      0
/// +----------------------------------+--------+--------+
/// | how many so far; wraps           | prio   | class  |
/// +----------------------------------+--------+--------+
/// ```
///
/// A vCPU learns of such a task by an interrupt that the host may never see. So the vCPU that queues the task stores it
/// here, and rings the doorbell if there is one. The vCPU that takes the interrupt counts the task as pending until its
/// next switch of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Number of such tasks so far, in 48 bits; wraps.
    pub count: u64,
    /// The last such task.
    pub task: TaskIntent,
}

impl Word for Remote {
    fn from_word(word: u64) -> Self {
        let [class, prio, ..] = word.to_le_bytes();
        Self { count: word >> 16, task: TaskIntent::from_bytes(class, prio) }
    }

    fn to_word(self) -> u64 {
        self.count << 16 | self.task.to_bits()
    }
}

/// The sections that the vCPU is in which must not be interrupted.
///
/// ```text
/// 63        32 31   25  24            23     16 15     8 7      0
/// +-----------+-------+--------------+---------+--------+--------+
/// | section   | 0     | PREEMPT_OFF  | softirq | hardirq| NMI    |
/// +-----------+-------+--------------+---------+--------+--------+
/// ```
///
/// The first three are nesting depths. `section` counts preempt-disabled sections: by it a host that samples the word
/// tells one long section from many short ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsState {
    /// NMI nesting.
    pub nmi: u8,
    /// Hard interrupt nesting.
    pub hardirq: u8,
    /// Softirq nesting.
    pub softirq: u8,
    /// Preemption is disabled by a task.
    pub preempt_off: bool,
    /// Number of the current or the last preempt-disabled section; wraps.
    pub section: u32,
}

impl CsState {
    /// Bit: preemption is off.
    pub const PREEMPT_OFF: u64 = 1 << 24;

    /// Whether an interrupt or a softirq is being handled.
    pub fn in_interrupt(self) -> bool {
        self.nmi != 0 || self.hardirq != 0 || self.softirq != 0
    }
}

impl Word for CsState {
    fn from_word(word: u64) -> Self {
        let [nmi, hardirq, softirq, ..] = word.to_le_bytes();
        Self {
            nmi,
            hardirq,
            softirq,
            preempt_off: word & Self::PREEMPT_OFF != 0,
            section: (word >> 32) as u32,
        }
    }

    #[inline]
    fn to_word(self) -> u64 {
        u64::from(self.nmi)
            | u64::from(self.hardirq) << 8
            | u64::from(self.softirq) << 16
            | if self.preempt_off { Self::PREEMPT_OFF } else { 0 }
            | u64::from(self.section) << 32
    }
}

/// What the guest asks for. Read lazily, at the next VM exit; only the end of a boost is announced at once, by a
/// notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum BoostRequest {
    /// No statement; the host judges by intent, critical sections and unanswered interrupts.
    /// Unknown encodings decode to this.
    #[default]
    None = 0,
    /// The guest saw that it is boosted, and nothing urgent is left.
    Unboost = 1,
    /// Something urgent runs or is about to.
    Boost = 2,
}

impl Word for BoostRequest {
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Unboost,
            2 => Self::Boost,
            _ => Self::None,
        }
    }

    fn to_word(self) -> u64 {
        self as u64
    }
}

/// How the host treats the vCPU. Everything that the guest does for this protocol depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Status {
    /// No cooperation: the guest's hooks do nothing. Unknown encodings decode to this, so that a
    /// guest switches itself off when it meets a host it does not understand.
    #[default]
    Disabled = 0,
    /// Cooperating, at the baseline priority.
    Normal = 1,
    /// Boosted.
    Boosted = 2,
    /// At the baseline because the budget is used up. Requests are read but not granted.
    Throttled = 3,
}

impl Word for Status {
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Normal,
            2 => Self::Boosted,
            3 => Self::Throttled,
            _ => Self::Disabled,
        }
    }

    fn to_word(self) -> u64 {
        self as u64
    }
}

/// What the host tells a guest about its placement. The bits are independent, so that a guest can follow one without
/// the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// No other thread needs the vCPU's pCPU: spinning and idle polling take CPU time from no thread.
    pub dedicated: bool,
    /// The vCPU is not preempted while boosted.
    pub unpreempted_when_boosted: bool,
    /// [`HostArea::preferred`](crate::HostArea::preferred) is maintained.
    pub preferred_valid: bool,
    /// [`HostArea::steal_ns`](crate::HostArea::steal_ns) is maintained.
    pub steal_valid: bool,
    /// The host fires the deadline in [`GuestArea::deadline_tsc`](crate::GuestArea::deadline_tsc): the guest need not
    /// program its own timer.
    pub exitless_timer: bool,
}

impl Word for Hints {
    fn from_word(word: u64) -> Self {
        let bit = |n: u32| word >> n & 1 != 0;
        Self {
            dedicated: bit(0),
            unpreempted_when_boosted: bit(1),
            preferred_valid: bit(2),
            steal_valid: bit(3),
            exitless_timer: bit(4),
        }
    }

    fn to_word(self) -> u64 {
        u64::from(self.dedicated)
            | u64::from(self.unpreempted_when_boosted) << 1
            | u64::from(self.preferred_valid) << 2
            | u64::from(self.steal_valid) << 3
            | u64::from(self.exitless_timer) << 4
    }
}
