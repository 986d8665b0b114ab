//! Threads that do nothing, to be inspected and changed.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use vcoop_threads::gettid;

/// A thread that waits until it is released. Dropping this releases it.
#[derive(Debug)]
pub struct WaitingThread {
    /// Its thread id.
    pub tid: i32,
    leave: Sender<()>,
    thread: JoinHandle<()>,
}

impl WaitingThread {
    /// Starts a thread.
    pub fn start() -> Self {
        let (tell, told) = mpsc::channel();
        let (leave, left) = mpsc::channel();
        let thread = thread::spawn(move || {
            tell.send(gettid()).expect("its number is waited for");
            // Nothing is sent: this returns when the sender is dropped.
            let _: Result<(), _> = left.recv();
        });
        Self { tid: told.recv().expect("it says its number"), leave, thread }
    }

    /// Releases the thread, and waits until it has ended. The kernel may take a moment longer to remove it.
    pub fn end(self) {
        drop(self.leave);
        self.thread.join().expect("it does nothing");
    }
}
