//! Processes that use as much of a CPU as they can get.

use std::process::{Child, Stdio};

use vcoop_threads::AffinityGuard;

use crate::error::StockError;
use crate::host::dies_with_caller;

/// Fair processes that never sleep. They end when this is dropped, and when the thread that started them ends.
#[derive(Debug)]
pub struct Hogs(Vec<Child>);

impl Hogs {
    /// Starts `count` processes on a CPU.
    ///
    /// # Errors
    ///
    /// The CPU cannot be used, or no process can be started.
    pub fn start(count: usize, cpu: u32) -> Result<Self, StockError> {
        let mut hogs = Self(Vec::new());
        let _here = AffinityGuard::on(&[cpu]);
        for _ in 0..count {
            let mut shell = dies_with_caller("KILL", "sh");
            shell.args(["-c", "while :; do :; done"]).stdout(Stdio::null());
            hogs.0.push(shell.spawn().map_err(StockError::io("starting a hog"))?);
        }
        Ok(hogs)
    }

    /// Their process ids.
    pub fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}
