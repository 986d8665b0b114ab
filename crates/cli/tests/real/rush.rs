//! VMs come and go while they are looked at.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vcoop_testing::{long, send, test};

use crate::vcoop::{Qemu, need_qemu, vcoop, vm_of, vms};

vcoop_testing::concurrent!();

/// How many VMs there may be at once.
const VMS: usize = 20;

/// A QEMU that is stopped before its first instruction, with two vCPUs.
pub(crate) fn stopped(name: &str, args: &[&str]) -> Qemu {
    let stopped: Vec<&str> = "-S -smp 2 -accel tcg,thread=multi".split(' ').collect();
    Qemu::start(name, &[&stopped, args].concat())
}

/// A stopped one that answers at this socket and shows both vCPUs.
fn answering(name: &str, socket: &Path) -> Qemu {
    let qmp = format!("unix:{},server=on,wait=off", socket.display());
    let mut qemu = stopped(name, &["-qmp", &qmp]);
    let pid = qemu.pid();
    let whole = |vm: &Value| vm["pid"] == pid && vm["vcpus"].as_array().unwrap().len() == 2;
    while !socket.exists() || !vms(&[]).iter().any(whole) {
        assert!(qemu.is_running());
    }
    qemu
}

/// Numbers below a bound, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// Tells the other threads of a scope to end, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Of a thread that is still there: when it started, and its process.
fn thread_of(tid: &Value) -> Option<(u64, u64)> {
    let file = |name: &str| fs::read_to_string(format!("/proc/{tid}/{name}")).ok();
    let stat = file("stat")?;
    let start = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let status = file("status")?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Some((start, process.trim().parse().ok()?))
}

test!("qemu", twenty_vms_come_and_go_while_they_are_shown, || {
    need_qemu()?;
    let prefix = format!("rush-{}-", std::process::id());
    // Every VM that there ever was, by its name.
    let started = Mutex::new(BTreeMap::new());
    let stop = AtomicBool::new(false);
    let come_and_go = |slot: usize| {
        let mut dice = Dice(slot as u64 + 1);
        for generation in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let name = format!("{prefix}{slot}-{generation}");
            let qemu = {
                let mut started = started.lock().unwrap();
                let qemu = stopped(&name, &[]);
                started.insert(name, qemu.pid());
                qemu
            };
            let until = Instant::now() + Duration::from_millis(dice.below(2500));
            while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            drop(qemu);
        }
    };
    let (mut looks, mut whole, mut most) = (0, 0, 0);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for slot in 0..VMS {
            scope.spawn(move || come_and_go(slot));
        }
        let (began, time) =
            (Instant::now(), long(Duration::from_secs(10), Duration::from_secs(120)));
        let enough = |looks, whole, most| {
            looks > 20 && started.lock().unwrap().len() > 2 * VMS && most > VMS / 2 && whole > looks
        };
        // On a slow host until enough was seen.
        while began.elapsed() < time || !enough(looks, whole, most) && began.elapsed() < 10 * time {
            let shown = vms(&[]);
            let mut ours = 0;
            for vm in &shown {
                let name = vm["name"].as_str().unwrap();
                // VMs that libvirt or a lab runs on this host are not ours.
                if !name.starts_with(&prefix) {
                    continue;
                }
                ours += 1;
                let pid = started.lock().unwrap()[name];
                assert_eq!(vm["pid"], pid, "{vm}");
                let vcpus = vm["vcpus"].as_array().unwrap();
                assert!(vcpus.len() <= 2, "{vm}");
                whole += usize::from(vcpus.len() == 2);
                for vcpu in vcpus {
                    // A thread id may mean another thread by now; its start time tells.
                    if let Some((start, process)) = thread_of(&vcpu["tid"])
                        && vcpu["start_ticks"] == start
                    {
                        assert_eq!(process, u64::from(pid), "a foreign thread in {vm}");
                    }
                }
            }
            looks += 1;
            most = most.max(ours);
        }
    });
    let started = started.into_inner().unwrap().len();
    let seen = format!("{looks} looks at {started} VMs, at most {most} at once, {whole} whole");
    eprintln!("{seen}");
    assert!(looks > 20 && started > 2 * VMS && most > VMS / 2 && whole > looks, "{seen}");
    Ok(())
});

test!("qemu", a_vm_that_is_killed_while_it_is_asked_is_no_surprise, || {
    need_qemu()?;
    let mut dice = Dice(1);
    let dir = std::env::temp_dir().join(format!("vcoop-rush-{}", std::process::id()));
    let socket = dir.to_str().unwrap();
    let (mut answered, mut refused) = (0, 0);
    for round in 0..20 {
        let qemu = answering("killed", &dir);
        let pid = qemu.pid();
        if round == 0 {
            // Whether all is well without a kill.
            assert_eq!(vm_of(pid, &["--qmp", socket])["vcpus"].as_array().unwrap().len(), 2);
        }
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_micros(dice.below(12_000)));
            drop(qemu);
            dice
        });
        let start = Instant::now();
        let said = vcoop(&["vms", "--json", "--qmp", socket]);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        dice = killer.join().unwrap();
        if said.code == Some(0) {
            assert_eq!(said.err, "");
            answered += 1;
        } else {
            said.fails(1, &[socket, "remedy: "]);
            refused += 1;
        }
        for vm in said.json()["vms"].as_array().unwrap() {
            let vcpus = vm["vcpus"].as_array().unwrap();
            assert!(vm["pid"] != pid || vcpus.len() <= 2, "{vm}");
        }
        let _ = fs::remove_file(&dir);
    }
    eprintln!("{answered} answered, {refused} refused");
    Ok(())
});

test!("qemu", a_vm_that_hangs_is_waited_for_a_second, || {
    need_qemu()?;
    let dir = std::env::temp_dir().join(format!("vcoop-hangs-{}", std::process::id()));
    let socket = dir.to_str().unwrap();
    let qemu = answering("hangs", &dir);
    let pid = qemu.pid();
    send(pid, Signal::STOP);
    let start = Instant::now();
    let said = vcoop(&["vms", "--json", "--qmp", socket]);
    let took = start.elapsed();
    let _ = fs::remove_file(&dir);
    said.fails(1, &["no answer in time"]);
    assert!(took < Duration::from_secs(5), "{took:?}");
    // Without a question it is shown as ever.
    assert_eq!(vm_of(pid, &[])["vcpus"].as_array().unwrap().len(), 2);
    Ok(())
});
