//! Captures: a real machine's scheduling, recorded as text and turned into replayable threads.
//!
//! A load generator makes a run queue that looks like a load generator. A capture makes one that looks like the
//! recorded load, such as a compile or a web server: how long each thread ran between sleeps, how long it slept, and
//! which thread woke it.
//!
//! ```text
//! perf script, trace-cmd report,      line          turn                replay
//! tracefs `trace`  ------------->  Line, Record  --------->  Capture  ----------> [CapturedThread]
//! (plain, gzip, zstd)                                        + Losses   Shape      + Dropped
//! ```
//!
//! Reading is streaming and bounded ([`Limits`]); lines that cannot be parsed are counted, not fatal. What the
//! conversion cannot know it counts or assumes, and records in [`Losses`]:
//!
//! - **Steal.** A recorded guest did not see when its host took the CPU away. That time counts as demand of the current
//!   thread.
//! - **The real waker.** A wake-up from interrupt context is a timer's or a device's; ftrace prints the context, `perf
//!   script` does not.
//! - **Affinity, cgroups, SCHED_RR, SCHED_IDLE, custom slices** are not in scheduler events.
//! - **The first and the last burst** of a thread that ran across the edge of the capture.
//!
//! ```
//! use vcoop_capture::{Capture, Limits, Shape};
//!
//! let trace = "\
//!   web-7  [000] d..2. 10.000000: sched_switch: prev_comm=web prev_pid=7 prev_prio=120 \
//!     prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
//!   <idle>-0 [000] d.h2. 10.004000: sched_waking: comm=web pid=7 prio=120 target_cpu=000
//!   <idle>-0 [000] d..2. 10.004000: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 \
//!     prev_state=R ==> next_comm=web next_pid=7 next_prio=120
//!   web-7  [000] d..2. 10.005000: sched_switch: prev_comm=web prev_pid=7 prev_prio=120 \
//!     prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
//! ";
//! let capture = Capture::read(trace.as_bytes(), &Limits::default())?;
//! assert_eq!(capture.span_ns, 5_000_000);
//! assert_eq!(capture.demand_ns(), 1_000_000);
//! let replay = capture.replay(&Shape::default());
//! assert_eq!(replay.threads[0].name, "web");
//! # Ok::<(), vcoop_capture::CaptureError>(())
//! ```

mod capture;
mod error;
mod input;
mod limits;
pub mod line;
mod loader;
mod losses;
mod reconstruct;
mod replay;

pub use capture::{Capture, Thread};
pub use error::CaptureError;
pub use limits::Limits;
pub use loader::{Loader, RequestedFiles};
pub use losses::{CpuTime, Losses};
pub use replay::{Dropped, GIVE_UP_FACTOR, GIVE_UP_SLACK_NS, Replay};
pub use vcoop_model::capture::Shape;
