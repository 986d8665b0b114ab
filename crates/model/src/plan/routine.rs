//! Parts of a [`Program::Routine`](super::Program::Routine).

use serde::{Deserialize, Serialize};
use vcoop_sched::config::Policy;

use super::{Dist, Mode, Ns, Phase};
use crate::toml_read::value::choice;

/// How many messages a receiver has room for, and when waiting senders are woken. Numbers are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueRoom {
    /// A list in memory, behind a futex: without limit.
    List,
    /// A Unix stream socket: all waiting senders are woken when a quarter is left in it (`unix_writable`,
    /// `sock_wait_for_wmem`).
    Socket(u32),
    /// A pipe of 16 pages that are filled and freed as a whole: when the first page of a full pipe has been read, one
    /// sender is woken; after writing it wakes the next (`fs/pipe.c`, Linux 6.14).
    Pipe(u32),
}

impl QueueRoom {
    /// Messages in a socket with the usual send buffer (`net.core.wmem_default`, 212 992 bytes): a message of 100 bytes
    /// takes 768.
    pub const SOCKET: u32 = 278;

    /// Messages of 100 bytes in 16 pages.
    pub const PIPE: u32 = 640;

    /// Messages in a page of a pipe.
    pub fn page(messages: u32) -> u32 {
        messages.div_ceil(16)
    }
}

/// One act of a [`Program::Routine`](super::Program::Routine).
///
/// A task's *peers* are the tasks of its own level that have its label; they are numbered from the
/// first. Acts marked *guests only* do nothing on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Run, sleep or call.
    Do(Phase),
    /// Call a server on another machine and wait for the answer, which a device interrupt brings.
    Remote {
        /// Time on the network and on that machine; uses none of our CPUs.
        delay: Dist,
        /// In a guest: vCPU that the device interrupts.
        irq_vcpu: u32,
    },
    /// Begin a latency sample. (A call begins one itself.)
    Begin,
    /// End the sample.
    Sample,
    /// Sleep to a time on a grid of this period, which begins at the first such act; the lateness of the next
    /// instruction is a sample. Grid points that have passed are missed.
    Timer {
        /// The period; with `busy` 0 is due at once.
        period_ns: Ns,
        /// Guests only: spin until the timer's interrupt, instead of sleeping.
        busy: bool,
        /// Guests only: how late the timer's interrupt is, is a sample of its own
        /// ([`SampleEnd::Interrupt`](super::SampleEnd::Interrupt)).
        interrupt: bool,
    },
    /// A unit of work is done: counted by `rate`.
    Done,
    /// Guests only: take a spinlock of the VM, with preemption off from here to its release.
    Lock {
        /// Its number, VM-wide.
        lock: u32,
    },
    /// Guests only: the same, with interrupts off as well (`spin_lock_irqsave`).
    LockIrq {
        /// Its number, VM-wide.
        lock: u32,
    },
    /// Guests only: release it.
    Unlock {
        /// Its number.
        lock: u32,
    },
    /// Guests only: take a sleeping lock of the VM.
    Acquire {
        /// Its number; spinlocks and sleeping locks are numbered together.
        lock: u32,
        /// How it is taken; not as a spinlock.
        kind: LockKind,
    },
    /// Guests only: release it.
    Release {
        /// Its number.
        lock: u32,
    },
    /// Guests only: wait until so many peers have come.
    Barrier {
        /// How many tasks of the label meet, including this one.
        of: u32,
        /// How long it spins before it sleeps, in nanoseconds.
        spin_ns: Ns,
    },
    /// Guests only: have other vCPUs call a function.
    Ipi {
        /// Which vCPUs.
        to: IpiTo,
        /// Whether to wait, spinning, until all have.
        wait: bool,
    },
    /// Guests only: the address space of the task's process has changed (munmap): flush the TLB of every vCPU on which
    /// a task of that process is loaded, and wait for that.
    Flush,
    /// Guests only: read the counters of C-state residency of the vCPU's CPU; each read exits, unless such exits are
    /// disabled.
    ReadCstates {
        /// How many counters.
        counters: u32,
    },
    /// Send a message to a peer; sleeps while there is no room.
    Post {
        /// The peer.
        peer: u32,
        /// Its limit.
        room: QueueRoom,
    },
    /// Take a message; sleeps until there is one.
    Receive {
        /// A wake-up by the message is a sample: from the posting to the first instruction.
        sample: bool,
    },
    /// Take a message, after a sleep if there is none, and use the CPU until a time has passed by the clock. What this
    /// takes longer, from the posting to the end, is a sample if the message ended a sleep.
    Serve {
        /// The time.
        time: Dist,
    },
    /// Send a message to the sender of the last one taken.
    Reply,
    /// Sleep until a peer wakes it (or goes on at once, if one already has).
    Suspend,
    /// Wake a peer.
    Resume {
        /// The peer.
        peer: u32,
    },
    /// The next `skip` acts are done only every `n`th time.
    Every {
        /// `n`, at least 1.
        n: u32,
        /// Number of acts.
        skip: u32,
    },
    /// Go back to an act until this one has been reached `times` times, then go on.
    Loop {
        /// Its index.
        to: u32,
        /// At least 1.
        times: u32,
    },
    /// Change own scheduling policy.
    SetPolicy(Policy),
    /// Leave for good.
    Exit,
}

/// vCPUs that are to call a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpiTo {
    /// The vCPU itself.
    Own,
    /// The next vCPU of the VM, the first after the last.
    Next,
    /// All other vCPUs of the VM.
    Others,
}

impl Act {
    /// Whether it takes latency samples.
    pub fn measures(&self) -> bool {
        matches!(
            self,
            Self::Sample | Self::Timer { .. } | Self::Receive { sample: true } | Self::Serve { .. }
        )
    }
}

choice! {
    /// Kind of a lock, and how it is taken: `kernel/locking/mutex.c` and `rwsem.c`. A spinlock is held with preemption
    /// off.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum LockKind {
        /// A spinlock.
        Spin = "spin",
        /// A spinlock that is taken with interrupts off.
        // From before a task waits for it to its release (`spin_lock_irqsave`).
        SpinIrq = "spin-irq",
        /// A kernel's mutex.
        // Waiters spin while the holder runs, and sleep else.
        Mutex = "mutex",
        /// A mutex of user space.
        // Over a futex: waiters sleep at once.
        Futex = "futex",
        /// A read-write semaphore, to read: others may, too.
        Read = "read",
        /// The same, to write.
        Write = "write",
    }
}

/// The part of a unit of work under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The lock's number, VM-wide.
    pub lock: u32,
    /// How it is taken.
    pub kind: LockKind,
    /// CPU time under it.
    pub time: Dist,
    /// Flush the TLBs of the task's peers under it, every so many times; 0: never.
    pub flush_every: u32,
}

impl Section {
    /// The mode in which its time is spent.
    pub fn mode(&self) -> Mode {
        match self.kind {
            LockKind::Spin | LockKind::SpinIrq => Mode::PreemptOff,
            LockKind::Futex => Mode::User,
            LockKind::Mutex | LockKind::Read | LockKind::Write => Mode::Kernel,
        }
    }

    /// The same as acts of a routine.
    pub fn acts(&self) -> Vec<Act> {
        let lock = self.lock;
        let (take, release) = match self.kind {
            LockKind::Spin => (Act::Lock { lock }, Act::Unlock { lock }),
            LockKind::SpinIrq => (Act::LockIrq { lock }, Act::Unlock { lock }),
            kind => (Act::Acquire { lock, kind }, Act::Release { lock }),
        };
        let mut acts = vec![take, Act::Do(Phase::Run { time: self.time, mode: self.mode() })];
        if self.flush_every > 0 {
            acts.extend([Act::Every { n: self.flush_every, skip: 1 }, Act::Flush]);
        }
        acts.push(release);
        acts
    }
}
