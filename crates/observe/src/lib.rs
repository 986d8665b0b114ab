//! Observes a VM on this host: how long its vCPUs wait for a CPU, and which threads run instead.
//!
//! ```text
//! vcoop_vmm::Vm -> Subject -> Observation: begin .. poll .. end -> Observed (a Recording, notes)
//! ```
//!
//! An [`Observation`] records the host's scheduler ([`vcoop_sources::trace`]) and changes nothing of
//! the VM. It can be begun and ended again and again, for windows of time that follow each other.
//!
//! What a window gives, with the VM's name as a scenario takes it in place of `VM`:
//!
//! | series | unit | what it is |
//! | --- | --- | --- |
//! | `VM.vcpuN` `wait` | latency | from a wake-up of the vCPU's thread until it runs |
//! | `VM.vcpuN` `preempted` | latency | from losing the CPU, with work left, until it runs again |
//! | `VM.urgent` `latency` | latency | where the guest has vcoop's driver: from when a timer that wakes an urgent task of the guest was due to when the task ran, by the guest's own count |
//! | `VM.vcpuN` `running`, `halted`, `steal` | % | shares of the window: on a CPU, asleep, waiting for a CPU |
//! | `VM.vcpuN` `run_delay` | % | the steal by the kernel's own count (`schedstat`): it should be as `steal` |
//! | `VM.vcpuN` `blocked` | % | in an uninterruptible sleep of the host (page fault, I/O, lock); left out where it is nothing |
//! | `VM.vcpuN` `guest`, `polling` | % | in guest mode; polling for the end of a halt: where KVM tells |
//! | `VM.vcpuN` `unknown` | % | not known, as events were lost; left out where it is nothing |
//! | `VM.vcpuN` `migrations`, `wakeups` | 1/s | changes of the CPU; wake-ups |
//! | `VM` `cpu`, `steal` | cpu, % | CPU time of all vCPUs; mean of their steal |
//! | `VM` `exit.REASON` | 1/s | exits from guest mode: where KVM tells |
//! | `host.others` `throughput` | cpu | CPU time of all but the VM, on the CPUs that its vCPUs may use |
//! | `host` `idle` | % | idle time of these CPUs |
//! | `observe` `cpu`, `events`, `lost` | %, count | what observing took, and what it saw |
//!
//! [`Observation::of_everybody`] keeps what all threads did, and [`Scene`] makes a scenario of it.
//!
//! A wait is cut at the window's edges: one that is under way at the end counts as far as it has come, and one that was
//! under way at the beginning counts from there. So the waits add up to the steal.

mod caveats;
mod cpu_use;
mod follow;
mod group;
mod history;
mod names;
mod observation;
mod observed_vm;
mod scenario_writer;
mod scene_vcpu;
mod trace_text;
mod urgent;

pub use observation::{NO_EXITS, NoObserver, Observation, ObservationResult, Slicing};
pub use observed_vm::{ObservedVm, Vcpu};
pub use scenario_writer::Scene;
