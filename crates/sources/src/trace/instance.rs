//! An own instance of the kernel's tracer: `instances/vcoop-PID` in tracefs.
//!
//! An instance has its own buffers, events, filters and clock: nothing in it changes what others trace. It is a
//! directory that outlives its maker, so it is removed on drop (also while a panic unwinds). An instance of a killed
//! process is removed by the next one.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use vcoop_threads::numbers_of_events;

use super::format::Format;
use super::page::Layout;
use crate::tracefs::mount_point;

/// Size of buffers in KiB: most for all CPUs together, least and most for one CPU.
const BUFFERS_KB: (usize, usize, usize) = (64 << 10, 256, 2048);

/// An instance, and its CPUs' buffers.
#[derive(Debug)]
pub(super) struct Instance {
    path: PathBuf,
    cpus: Vec<(u32, File)>,
    layout: Layout,
}

/// Reads a file in one read. Files such as `header_page` return nothing after their first read, however short that was.
fn read_at_once(path: &Path) -> std::io::Result<String> {
    let mut bytes = vec![0; 1 << 14];
    let n = File::open(path)?.read(&mut bytes)?;
    bytes.truncate(n);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn why(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> String {
    let at = path.display().to_string();
    let what = what.to_owned();
    move |e| format!("cannot {what} {at}: {e}")
}

impl Instance {
    /// Makes an instance; `name` distinguishes instances of one process. Nothing is recorded yet.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        numbers_of_events().map_err(|(what, remedy)| format!("{what}; {remedy}"))?;
        let root = mount_point().ok_or_else(|| {
            "tracefs is not mounted; mount -t tracefs nodev /sys/kernel/tracing".to_owned()
        })?;
        let clocks = root.join("trace_clock");
        let known = fs::read_to_string(&clocks).map_err(why("read", &clocks))?;
        if !known.split_whitespace().any(|c| c.trim_matches(['[', ']']) == "x86-tsc") {
            return Err("this kernel cannot trace with the TSC as clock".to_owned());
        }
        let header = root.join("events/header_page");
        let text = read_at_once(&header).map_err(why("read", &header))?;
        let layout = Layout::parse(&text)
            .ok_or_else(|| format!("{} is not as expected", header.display()))?;
        let instances = root.join("instances");
        remove_stale(&instances);
        let path = instances.join(format!("vcoop-{}{name}", std::process::id()));
        // One of this process, or of an earlier one of this number: of no other process.
        let _ = fs::remove_dir(&path);
        fs::create_dir(&path).map_err(why("create", &path))?;
        // From here on it is removed however this ends.
        let mut instance = Self { path, cpus: Vec::new(), layout };
        instance.write("tracing_on", "0")?;
        instance.write("trace_clock", "x86-tsc")?;
        // Old events make room for new ones, and the page after the hole says so.
        instance.write("options/overwrite", "1")?;
        instance.open()?;
        let (all, least, most) = BUFFERS_KB;
        let kb = (all / instance.cpus.len().max(1)).clamp(least, most);
        instance.write("buffer_size_kb", &kb.to_string())?;
        Ok(instance)
    }

    /// Opens the CPUs' buffers for non-blocking reads.
    fn open(&mut self) -> Result<(), String> {
        let per_cpu = self.path.join("per_cpu");
        for entry in fs::read_dir(&per_cpu).map_err(why("list", &per_cpu))?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|n| n.strip_prefix("cpu")?.parse().ok());
            let Some(cpu) = number else { continue };
            let path = entry.path().join("trace_pipe_raw");
            let mut options = OpenOptions::new();
            let open = options.read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            self.cpus.push((cpu, open.map_err(why("open", &path))?));
        }
        self.cpus.sort_by_key(|(cpu, _)| *cpu);
        Ok(())
    }

    /// Layout of its pages.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Writes one of the instance's files.
    ///
    /// # Errors
    ///
    /// Which file and why, in words.
    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.path.join(file);
        fs::write(&path, text).map_err(why(&format!("write {text:?} to"), &path))
    }

    /// The format of an event; `None` if this kernel has no such event.
    pub(super) fn format(&self, event: &str) -> Option<Format> {
        let path = self.path.join("events").join(event).join("format");
        Format::parse(&fs::read_to_string(path).ok()?)
    }

    /// Hands out the pages that each CPU has filled, or is filling, since the last call, oldest first. Reads at most
    /// `most` pages a CPU; returns true if there are no more.
    ///
    /// # Errors
    ///
    /// Why a buffer could not be read.
    pub(super) fn read(
        &self,
        most: usize,
        mut each: impl FnMut(u32, &[u8]),
    ) -> Result<bool, String> {
        let mut page = vec![0; self.layout.page_size()];
        let mut all = true;
        for (cpu, file) in &self.cpus {
            let mut left = most;
            loop {
                if left == 0 {
                    all = false;
                    break;
                }
                left -= 1;
                match (&*file).read(&mut page) {
                    Ok(0) => break,
                    Ok(n) => each(*cpu, &page[..n]),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(format!("cannot read the trace of CPU {cpu}: {e}")),
                }
            }
        }
        Ok(all)
    }

    /// Events lost so far: overwritten, or not recorded.
    pub(super) fn lost(&self) -> u64 {
        let of = |cpu: u32| {
            let path = self.path.join(format!("per_cpu/cpu{cpu}/stats"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let count = |key: &str| -> u64 {
                let line = text.lines().find_map(|l| l.strip_prefix(key));
                line.and_then(|l| l.trim().parse().ok()).unwrap_or(0)
            };
            count("overrun:") + count("commit overrun:") + count("dropped events:")
        };
        self.cpus.iter().map(|(cpu, _)| of(*cpu)).sum()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.write("tracing_on", "0");
        let _ = self.write("events/enable", "0");
        // An instance whose files are open is busy.
        self.cpus.clear();
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes the instances of processes that have ended. If the process lives in another PID namespace, its files are
/// open, and the kernel refuses to remove an instance in use.
fn remove_stale(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix("vcoop-"));
        let Some(owner) = owner else { continue };
        let pid = owner.split('-').next().and_then(|p| p.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Instance;
    use crate::trace::page::Page;
    use std::fs;
    use std::path::PathBuf;

    fn instance(name: &str) -> Option<Instance> {
        match Instance::new(name) {
            Ok(instance) => Some(instance),
            Err(why) => {
                vcoop_testing::Skip::because(why).tell();
                None
            }
        }
    }

    #[test]
    fn it_is_gone_after_use_and_after_a_panic() {
        let Some(instance) = instance("-gone") else { return };
        let path = instance.path.clone();
        assert!(path.is_dir());
        drop(instance);
        assert!(!path.exists());
        let panics = std::panic::catch_unwind(|| {
            let _instance = Instance::new("-gone").unwrap();
            panic!("while it is there");
        });
        assert!(panics.is_err() && !path.exists());
    }

    #[test]
    fn what_the_kernel_overwrites_is_told_in_the_pages_and_counted() {
        let Some(instance) = instance("-lossy") else { return };
        instance.write("buffer_size_kb", "8").unwrap();
        instance.write("events/sched/sched_waking/enable", "1").unwrap();
        instance.write("tracing_on", "1").unwrap();
        // Some hundred pages of wake-ups.
        std::thread::spawn(|| {
            vcoop_threads::set_timer_slack(1);
            for _ in 0..20_000 {
                std::thread::sleep(std::time::Duration::from_nanos(1));
            }
        })
        .join()
        .unwrap();
        instance.write("tracing_on", "0").unwrap();
        let (layout, mut told, mut events) = (instance.layout(), 0, 0);
        let all = instance.read(1_000, |_, bytes| {
            let page = Page::new(bytes, &layout).unwrap();
            told += u64::from(page.missed().is_some());
            let mut records = page.records();
            events += records.by_ref().count();
            assert!(!records.is_broken());
        });
        assert_eq!(all, Ok(true));
        assert!(told > 0 && events > 0 && instance.lost() > 1_000, "{told} {events}");
    }

    #[test]
    fn those_of_the_dead_are_removed() {
        let Some(first) = instance("-first") else { return };
        // No process has this number: it is above the kernel's largest.
        let stale: PathBuf = first.path.with_file_name("vcoop-4194305");
        fs::create_dir(&stale).unwrap();
        let _second = instance("-second");
        assert!(!stale.exists() && first.path.exists());
    }
}
