//! The memory that a guest with vcoop's driver shares with this host.
//!
//! ```text
//! Server ---- ivshmem's protocol: memory, doorbell ----> VMM (PCI device) --> guest's driver
//!   |
//!   +--> Offer: Window + bell            find(pid): the Window of a VMM that was not served
//!                  |                                  |
//!                  +----------> Window <--------------+
//!                               Clock: the guest's TSC as this host's time
//! ```
//!
//! [`vcoop_abi::window`] describes the content of a window. It is not trusted: the guest can write all of it, and its
//! VMM can make the file shorter while it is mapped here, which [`Window`] survives.

mod clock;
mod examine;
mod find;
mod guard;
mod latency;
mod map;
mod server;

pub use clock::Clock;
pub use examine::{ExaminedVcpu, examine};
pub use find::{address, find};
pub use latency::Latencies;
pub use map::{VcpuNumbers, Window};
pub use server::{Offer, Server};

/// Lock for tests whose driver registers in a window, and tests that search for windows: these would find the others'
/// windows in the same process.
#[cfg(test)]
fn registered() -> std::sync::MutexGuard<'static, ()> {
    static REGISTERED: std::sync::Mutex<()> = std::sync::Mutex::new(());
    REGISTERED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
