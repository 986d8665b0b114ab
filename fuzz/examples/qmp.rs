//! Any bytes, as what the other end of a QMP socket says: read or refused, never a panic, and what
//! is read is bounded and safe to print.
#![no_main]

use std::io::{self, Read, Write};

use libfuzzer_sys::fuzz_target;
use vcoop_vmm::limits;
use vcoop_vmm::qmp::Qmp;

/// The bytes to be read; what is written is lost.
struct Other<'a>(&'a [u8]);

impl Read for Other<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Other<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ask(bytes: &[u8]) {
    let Ok(mut qmp) = Qmp::start(Other(bytes)) else { return };
    if let Ok(cpus) = qmp.cpus() {
        assert!((1..=limits::VCPUS).contains(&cpus.len()));
        assert!(cpus.is_sorted_by(|a, b| a.index < b.index));
    }
    match qmp.name() {
        Ok(Some(name)) => assert!(!name.chars().any(char::is_control)),
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
    let _ = qmp.kvm();
}

fuzz_target!(|bytes: &[u8]| {
    ask(bytes);
    // The way in, so that most inputs get beyond it.
    ask(&[b"{\"QMP\":{}}\n{\"return\":{}}\n", bytes].concat());
});
