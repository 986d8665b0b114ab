//! The trait of scheduling classes.
//!
//! A class orders the entities of one CPU. It knows nothing of other CPUs: placement, pushing,
//! pulling and balancing belong to the level, which moves an entity by taking it off one queue
//! and putting it on another. A [`Level`](crate::Level) asks its classes in a fixed order and
//! calls them by their types, so that nothing is dispatched at run time.
//!
//! The entity that runs is *on* its queue but not *in* it, as in the kernel's fair class:
//! `pick` weighs it against the queued ones, and a CPU that keeps its entity moves nothing.
//!
//! ```text
//!            enqueue             set_next
//!   (off) ------------> queued ------------> current
//!     ^                 |    ^                 |  |
//!     +-----------------+    +-----------------+  |
//!     |     dequeue                put_prev       |
//!     +-------------------------------------------+
//!                         dequeue
//! ```

use crate::config::Ns;
use crate::{CpuId, EntId};

/// Why an entity comes onto a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enqueue {
    /// It was just created.
    Initial,
    /// It slept.
    Wakeup,
    /// It was runnable before, on another CPU or under another policy.
    Restore,
    /// As `Restore`, but it goes ahead of its equals.
    RestoreHead,
}

/// Why an entity leaves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dequeue {
    /// It sleeps. A class may keep it queued while it has negative lag.
    Sleep,
    /// It stays runnable, elsewhere.
    Save,
    /// It exits.
    Exit,
}

/// Order of entities on one CPU. Time enters only by [`Class::charge`].
pub(crate) trait Class {
    /// Puts an entity that is off the queue onto it, not running.
    fn enqueue(&mut self, cpu: CpuId, e: EntId, how: Enqueue);

    /// Takes an entity, queued or current, off the queue. False if the class keeps it queued as a sleeper with negative
    /// lag.
    fn dequeue(&mut self, cpu: CpuId, e: EntId, how: Dequeue) -> bool;

    /// The entity that should run: a queued one, or the current one if it is still on the queue. Changes nothing,
    /// except that sleepers without negative lag leave the queue.
    fn pick(&mut self, cpu: CpuId) -> Option<EntId>;

    /// `prev` stops being current, because `next` (of this class, if given) will be. If `prev` is still on the queue,
    /// it waits there now.
    fn put_prev(&mut self, cpu: CpuId, prev: EntId, next: Option<EntId>);

    /// A queued entity becomes current.
    fn set_next(&mut self, cpu: CpuId, e: EntId);

    /// The current entity executed for `ran`. True if it should give way.
    fn charge(&mut self, cpu: CpuId, e: EntId, ran: Ns) -> bool;

    /// A tick hit the current entity, which is charged already. True if it should give way.
    fn tick(&mut self, cpu: CpuId, e: EntId) -> bool;

    /// `woken` was just enqueued beside the current entity, both of this class and charged. True
    /// if the current should give way.
    fn check_preempt(&mut self, cpu: CpuId, curr: EntId, woken: EntId) -> bool;

    /// The current entity stands back.
    fn yield_current(&mut self, cpu: CpuId, e: EntId);
}
