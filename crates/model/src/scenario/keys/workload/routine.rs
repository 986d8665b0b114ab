//! Kinds whose tasks talk to each other, or keep each other waiting.

use crate::plan::Dist;
use crate::plan::LockKind;
use crate::toml_read::Placed;
use crate::toml_read::table::{SharedKeys, table};
use crate::toml_read::units::{Period, Time};
use crate::toml_read::value::{Int, choice};

table! {
    /// A part of each unit of work that is done under a lock.
    pub(crate) struct SectionKeys {
        /// Number of the VM's lock that it takes for a part of each call, message, request or step (guests only).
        /// Workloads of a VM with the same number share the lock. Default: none.
        lock: Option<Placed<Int<0, 63>>>,
        /// Kind of the lock: a spinlock (`spin-irq`: taken with interrupts off, as by `spin_lock_irqsave`), a kernel's
        /// mutex, a futex as in mutexes of user space, or a read-write semaphore like Linux's `mmap_lock` to read or to
        /// write. Waiters for a mutex, and waiting writers, spin while the holder runs and otherwise sleep; waiters for
        /// a futex and waiting readers sleep. Default: mutex.
        lock_kind: Option<Placed<LockKind>>,
        /// CPU time under the lock, besides the other work. Default: exp 2us.
        section: Option<Placed<Dist>>,
        /// Every so many acquisitions of the lock, the TLBs of all vCPUs that run tasks of this process are flushed
        /// under the lock, as by munmap; 0: no flush. Default: 0.
        flush_every: Option<Placed<Int<0, 1_000_000_000>>>,
    }
}

table! {
    /// Calls a server and waits for the answer, in a loop: TCP_RR, or with a think time a user of Redis, memcached or a
    /// web server. Measures the round trip, from the call to the first instruction after the answer; `rate` counts
    /// them.
    pub(crate) struct Client {
        /// Server that it calls, here or in another VM: `host.LOAD` or `VM.TASK`; of several copies
        /// `VM.TASK/0`, or without the number copy n modulo the servers. Either this or `network`.
        server: Option<Placed<String>>,
        /// The server is on another machine: time from the call's departure to the interrupt of the answer, with the
        /// server's work.
        network: Option<Placed<Dist>>,
        /// Time between an answer and the next call.
        think: Placed<Dist> = "0us",
        /// CPU time of a message before it is sent.
        work: Placed<Dist> = "2us",
        /// What it does under a lock before each call.
        guarded: SharedKeys<SectionKeys>,
        /// vCPU that takes the interrupts of answers from outside of the VM.
        irq_vcpu: Placed<Int<0, 255>> = "0",
    }
}

table! {
    /// Two tasks that send a message back and forth through two pipes (perf bench sched pipe): NAME/ping and
    /// NAME/pong. Measures the round trip; `rate` counts them.
    pub(crate) struct Pipe {
        /// CPU time of each task before it writes.
        work: Placed<Dist> = "1us",
    }
}

choice! {
    /// What messages go through.
    pub(crate) enum MessageChannel {
        /// A Unix stream socket.
        Socket = "socket",
        /// A pipe.
        Pipe = "pipe",
    }
}

table! {
    /// Groups of senders and receivers (hackbench, perf bench sched messaging): each sender of a group writes a message
    /// to each receiver of it by turns, and sleeps while there is no room. `rate` counts messages received.
    pub(crate) struct Groups {
        /// Groups.
        groups: Placed<Int<1, 1000>> = "10",
        /// Senders of a group.
        senders: Placed<Int<1, 1000>> = "20",
        /// Receivers of a group.
        receivers: Placed<Int<1, 1000>> = "20",
        /// What messages go through: a `socket`, whose writers are all woken when three quarters are free, or a `pipe`
        /// (hackbench -p), of which one is woken when a page is free.
        through: Placed<MessageChannel> = "socket",
        /// Messages that a receiver has room for. Default: those of 100 bytes that Linux has room for, 278 in a socket
        /// and 640 in a pipe.
        room: Option<Placed<Int<1, 1_000_000>>>,
        /// CPU time of a message at its sender.
        send: Placed<Dist> = "1us",
        /// CPU time of a message at its receiver.
        receive: Placed<Dist> = "1us",
        /// A sender's sleep after it has written to all receivers once.
        pause: Placed<Dist> = "0us",
        /// Times that a sender writes to all receivers before it exits (hackbench -l). Receivers exit after as many
        /// messages, and `elapsed` is the time until all have. Default: for ever.
        loops: Option<Placed<Int<1, 1_000_000>>>,
        /// CPU time under the lock of a receiver's queue, once a message at its sender and once at its receiver, besides
        /// `send` and `receive` (guests only): a spinlock of a socket, or the mutex of a pipe. Default: queues have no
        /// lock.
        queue_section: Option<Placed<Dist>>,
        /// What a receiver does under a lock for each message.
        guarded: SharedKeys<SectionKeys>,
    }
}

table! {
    /// Message threads that hand requests to workers (schbench): NAME/messenger-0, NAME/worker-0, ... A
    /// worker asks its messenger for a request, sleeps until it is woken for one, thinks and works. With an `interval`
    /// requests come at a fixed rate instead (`-R`), whether workers are done or not, and `work` goes by the clock: a
    /// worker spins until that time has passed. Measures the wake-up latency of workers, from the message to the first
    /// instruction. With an `interval` it measures how much longer than `work` a request takes, from the message to the
    /// end, unless its worker is still at the request before. `rate` counts requests.
    pub(crate) struct Schbench {
        /// Message threads (`-m`).
        messengers: Placed<Int<1, 256>> = "1",
        /// Workers of each (`-t`).
        workers: Placed<Int<1, 1024>> = "8",
        /// CPU time of a messenger for each request.
        message: Placed<Dist> = "1us",
        /// A worker's sleep before it works on a request. Default: 100 us, and none with an `interval`, which takes
        /// none.
        think: Option<Placed<Dist>>,
        /// CPU time of a request.
        work: Placed<Dist> = "exp 1ms",
        /// A messenger's sleep between two batches of requests. Default: no fixed rate.
        interval: Option<Placed<Period>>,
        /// interval: requests of a batch, at most `workers`, each to the next worker in turn. schbench of 2017 to 2021
        /// wakes two thirds of its workers at once. Default: 1.
        batch: Option<Placed<Int<1, 1024>>>,
        /// What a worker does under a lock for each request.
        guarded: SharedKeys<SectionKeys>,
    }
}

table! {
    /// A further part of a round, after the parts before it.
    pub(crate) struct StepKeys {
        /// How many times the step is repeated in a round.
        times: Placed<Int<1, 10_000>> = "1",
        /// The step is done in one of this number of rounds.
        every: Placed<Int<1, 1_000_000_000>> = "1",
        /// CPU time in user mode, before the lock is taken.
        work: Placed<Dist> = "0us",
        /// CPU time in the guest's kernel, before the lock is taken.
        kernel: Placed<Dist> = "0us",
        /// What it does under a lock.
        guarded: SharedKeys<SectionKeys>,
    }
}

table! {
    /// Works, and takes a spinlock of the VM for a part of it (guests only). With steps it can take several locks in a
    /// round, or one lock in several ways, as ebizzy does. Measures the time from asking for the first lock to the end
    /// of the round; `rate` counts rounds.
    pub(crate) struct LockWorkers {
        /// CPU time of a round outside of the lock, in user mode.
        work: Placed<Dist> = "exp 20us",
        /// CPU time of a round outside of the lock in the guest's kernel, as for page faults: KVM yields to vCPUs that
        /// were preempted there only.
        kernel: Placed<Dist> = "0us",
        /// CPU time under the lock, with preemption off.
        section: Placed<Dist> = "exp 2us",
        /// The lock: workloads of a VM that give the same number share it.
        lock: Placed<Int<0, 63>> = "0",
        /// Kind of the lock: a spinlock (`spin-irq`: taken with interrupts off, as by `spin_lock_irqsave`), a kernel's
        /// mutex, a futex as in mutexes of user space, or a read-write semaphore to read or to write. Waiters for a
        /// mutex, and waiting writers, spin while the holder runs and otherwise sleep; waiters for a futex and waiting
        /// readers sleep. Holders of all but a spinlock can be preempted.
        lock_kind: Placed<LockKind> = "spin",
        /// The TLBs are flushed under the lock, not after it.
        flush_locked: Placed<bool> = "false",
        /// Every so many rounds there is a munmap, which flushes the TLBs of all vCPUs that run tasks of this process;
        /// 0: none.
        flush_every: Placed<Int<0, 1_000_000_000>> = "0",
        /// Further parts of the round, in this order, after the above.
        step: Vec<StepKeys>,
    }
}

table! {
    /// Tasks that compute and then wait at a barrier until all of them have come, as threads of an OpenMP or MPI
    /// program do (linpack, NPB; guests only). Measures the time of a round, from its begin to the first instruction
    /// behind the barrier; `rate` counts rounds of tasks.
    pub(crate) struct Barrier {
        /// CPU time of a round.
        work: Placed<Dist> = "exp 1ms",
        /// How long a task spins at the barrier, in user mode, before it sleeps; 0: it sleeps at once. libgomp spins
        /// some ms unless there are more threads than CPUs, Intel's runtime 200 ms.
        spin: Placed<Time> = "1ms",
    }
}

choice! {
    /// Which IPIs are sent.
    pub(crate) enum IpiMode {
        /// None: what the loop itself takes.
        DryRun = "dry-run",
        /// To the own vCPU, which calls the function in place, without an interrupt.
        Own = "self",
        /// To the next vCPU.
        Unicast = "unicast",
        /// To all others.
        Broadcast = "broadcast",
        /// The same, under a spinlock.
        BroadcastLock = "broadcast-lock",
    }
}

table! {
    /// Has other vCPUs call an empty function, waits until they have, and repeats that (guests only). With mode =
    /// "self" the vCPU calls it in place, without an interrupt, as Linux does. Measures the time of a round; `rate`
    /// counts rounds.
    pub(crate) struct IpiBench {
        /// Which IPIs are sent.
        mode: Placed<IpiMode> = "broadcast",
        /// CPU time between two rounds.
        gap: Placed<Dist> = "1us",
        /// broadcast-lock: the lock, as for `lock-workers`.
        lock: Placed<Int<0, 63>> = "0",
    }
}

choice! {
    /// How a timer is waited for.
    pub(crate) enum TimerWait {
        /// Asleep: the vCPU halts, if it has nothing else to do.
        Halt = "halt",
        /// Spinning.
        Busy = "busy",
    }
}

table! {
    /// Arms a timer, waits until it expires, and repeats that (guests only). Measures each expiry twice:
    /// NAME.interrupt to the entry of the interrupt's handler, as kvm-unit-tests' tscdeadline_latency
    /// does, and NAME to the task's first instruction, as cyclictest does. The second has in it the
    /// handler, the arming of the vCPU's next timer, and the switch to the task. `rate` counts rounds.
    pub(crate) struct TimerBench {
        /// Time from one expiry to the next, at least 1us. With wait = "busy" 0us is possible: each timer is due at the
        /// moment in which it is armed.
        interval: Placed<Time> = "100us",
        /// Way of waiting for the timer.
        wait: Placed<TimerWait> = "halt",
        /// CPU time after each expiry.
        work: Placed<Dist> = "1us",
    }
}

table! {
    /// A monitor that reads the residency of idle states at intervals, as turbostat does, from the counters (MSRs) of
    /// its own vCPU (guests only). Each read exits, unless disable_exits = ["cstate"]. Measures how long it takes to
    /// read all counters.
    pub(crate) struct CstateMonitor {
        /// Time between two readings.
        interval: Placed<Dist> = "100ms",
        /// Counters: of a core there are four (C1, C3, C6, C7), of its package up to seven more.
        counters: Placed<Int<1, 64>> = "4",
    }
}

table! {
    /// Threads described in the language of rt-app: runs, sleeps, timers, locks, loops, priorities (guests only).
    /// Something that vcoop cannot express is refused with its path in the file. Measures the lateness of timers.
    pub(crate) struct RtApp {
        /// A JSON file, relative to the scenario's, or `builtin:rt-app-mixed`.
        file: Placed<String>,
    }
}
