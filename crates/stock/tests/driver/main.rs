//! The Linux driver in a stock guest. The host is this test: the window is a file that it reads and
//! writes.
//!
//! `cargo test --workspace --test driver -- --ignored` runs them. Each skips itself where QEMU, a kernel
//! or its headers cannot be had.
#![cfg(target_os = "linux")]

use std::mem::offset_of;

use vcoop_abi::window::{self, Doorbell, GuestReport, Identity, WindowHeader, host_page};
use vcoop_abi::{
    BoostRequest, Class, CsState, GuestArea, Header, Hints, HostArea, Intent, Remote, Status,
    TaskIntent, Word,
};
use vcoop_stock::{CLOUD, Dkms, Headers, Kernel, KernelTree, RT};
use vcoop_testing::{Outcome, Skip, test};

mod rig;

use rig::{BYTES, Guest, LIMIT, Window, during, have, until};

vcoop_testing::concurrent!();

const SERIES: [&str; 2] = ["6.1", "6.12"];

test!("", the_driver_builds_for_every_series, || -> Outcome {
    let releases = have(Headers::newest(CLOUD, &SERIES))?;
    let mut built = 0;
    for release in releases {
        match Headers::get(&release).and_then(|h| h.build_driver()) {
            Ok(module) => {
                eprintln!("built {}", module.display());
                built += 1;
            }
            Err(error) if error.is_missing() => eprintln!("Linux {release} is left out: {error}"),
            Err(error) => panic!("Linux {release}: {error}"),
        }
    }
    if built == 0 { Err(Skip::because("no headers of any kernel can be had")) } else { Ok(()) }
});

test!("dkms", dkms_builds_installs_and_removes_the_driver, || -> Outcome {
    let dkms = have(Dkms::get())?;
    let headers = have(Headers::get(&have(have(Kernel::get())?.release())?))?;
    let run = |command| dkms.run(command, &headers).unwrap_or_else(|e| panic!("{e}"));
    for command in ["add", "build", "install"] {
        run(command);
    }
    let status = run("status");
    assert!(status.contains("vcoop/0.1.0") && status.contains("installed"), "{status}");
    let installed = dkms.installed().unwrap();
    let names: Vec<_> = installed.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert!(matches!(names[..], [name] if name.starts_with("vcoop.ko")), "{installed:?}");
    run("remove");
    assert!(dkms.installed().unwrap().is_empty());
    assert!(!run("status").contains("installed"));
    // No kernel is too old by its headers alone.
    for (release, is_built) in [("6.0.19-amd64", false), ("5.19.0", false), ("10.0.1", true)] {
        let headers = headers.called(release);
        let built = dkms.run("build", &headers);
        let refused = built.is_err_and(|why| why.to_string().contains("BUILD_EXCLUSIVE"));
        assert_eq!(!refused, is_built, "{release}");
    }
    Ok(())
});

test!("6.1", a_stock_guest_tells, || tells(have(Kernel::get())?, "first"));

test!("newest", a_newer_guest_tells, || tells(newest(CLOUD)?, "newest"));

// What differs with PREEMPT_RT: softirqs, timers and interrupts have threads, and many locks lend priorities.
test!("rt", an_rt_guest_tells, || -> Outcome {
    let (guest, window) = registered(newest(RT)?, "rt")?;
    tells_who_is_urgent(&guest, &window);
    tells_how_late_it_was(&guest, &window);
    tells_who_holds_up_an_urgent_task(&guest, &window);
    tells_who_is_nice(&guest, &window);
    softirqs_are_their_threads_work(&guest, &window);
    ends_boosts(&guest, &window);
    unloads_while_boosted(&guest, &window);
    Ok(())
});

/// The newest kernel of a flavour that can be had.
fn newest(flavour: &str) -> Result<Kernel, Skip> {
    let Some(release) = have(Headers::newest(flavour, &[]))?.pop() else {
        return Err(Skip::because("this host's apt knows no headers; run `apt-get update`"));
    };
    Ok(have(KernelTree::of(&release))?.kernel)
}

test!("newest", a_wake_up_without_an_interrupt_is_told_at_once, || -> Outcome {
    const WAKE_UPS: u64 = 40;
    // A CPU that waits in a loop, or by MWAIT, needs no interrupt. One on the way to another task is enough for both.
    for (name, append, first) in [("polls", "idle=poll", "/dev/null"), ("halts", "", "/tmp/fair")] {
        let window = Window::new(name);
        let guest = Guest::start_with(newest(CLOUD)?, &window, append)?;
        guest.load("");
        window.offer(Status::Normal);
        guest.sh("mkfifo /tmp/urgent /tmp/fair");
        let pid = guest.sh("(taskset 2 chrt -f 30 cat /tmp/urgent >/dev/null & echo $!)");
        // It stays open for who reads.
        guest.sh("(sleep 30 >/tmp/urgent & ); (taskset 2 cat /tmp/fair >/dev/null & )");
        let counts = || {
            let slept = guest.sh(&format!("grep ^voluntary /proc/{}/status", pid.trim()));
            let slept: u64 = slept.split_whitespace().last().unwrap().parse().unwrap();
            (Remote::from_word(window.area(1, offset_of!(GuestArea, remote))).count, slept)
        };
        let before = counts();
        // The waker runs on for longer than a wake-up is news.
        let writes = format!("taskset 1 wake write 7000 {WAKE_UPS}");
        guest.sh(&format!("{writes} >/tmp/urgent 2>{first}"));
        let now = counts();
        let (told, slept) = (now.0 - before.0, now.1 - before.1);
        assert!(told * 10 >= slept * 9, "{name}: {told} of {slept}; {}", guest.state());
        assert!(slept > WAKE_UPS / 4, "{name}: {slept}");
        guest.assert_healthy();
    }
    Ok(())
});

/// Parameters of the driver that can be changed while it is loaded.
const PARAMETERS: &str = "/sys/module/vcoop/parameters";

/// A guest with a driver that has seen a host come.
fn registered(kernel: Kernel, name: &str) -> Result<(Guest, Window), Skip> {
    let window = Window::new(name);
    let guest = Guest::start(kernel, &window)?;
    guest.load("");
    assert!(window.is_registered());
    assert_eq!(window.header(offset_of!(WindowHeader, vcpus)), 2);
    let khz = window.header(offset_of!(WindowHeader, tsc_khz));
    assert!((100_000..10_000_000).contains(&khz), "{khz}");
    for vcpu in 0..2 {
        let identity = Identity::from_word(window.report(vcpu, offset_of!(GuestReport, vcpu)));
        assert_eq!(identity, Identity { online: true, apic_id: vcpu as u32 });
        assert_eq!(window.area(vcpu, offset_of!(GuestArea, header)), Header::OURS.to_word());
    }

    // Without a host it counts, and says nothing.
    guest.sh("taskset 1 cyclictest -q -p 80 -i 1000 -l 100");
    assert!(window.events() > 100);
    for field in [offset_of!(GuestArea, intent), offset_of!(GuestArea, deadline_tsc)] {
        assert_eq!(window.area(0, field), 0);
    }

    window.offer(Status::Normal);
    Ok((guest, window))
}

fn tells(kernel: Kernel, name: &str) -> Outcome {
    let (guest, window) = registered(kernel, name)?;
    tells_who_is_urgent(&guest, &window);
    tells_how_late_it_was(&guest, &window);
    tells_what_is_due_and_who_is_woken(&guest, &window);
    tells_who_holds_up_an_urgent_task(&guest, &window);
    rings(&guest, &window);
    ends_boosts(&guest, &window);
    window.offer(Status::Normal);
    tells_who_is_nice(&guest, &window);
    tells_who_is_declared_urgent(&guest, &window);
    tells_of_deadline_tasks(&guest, &window);
    is_told_which_vcpus_are_preferred(&guest, &window);
    talks_to_nobody_without_a_host(&guest, &window);
    unloads_while_boosted(&guest, &window);
    Ok(())
}

/// The urgent task and its next deadline are there, and how late it was.
fn tells_who_is_urgent(guest: &Guest, window: &Window) {
    let ping = host_page(0) + offset_of!(HostArea, ping) as u64;
    window.write(ping, 7);
    let before = window.latencies(0);
    let mut deadlines = Vec::new();
    let urgent = during(
        || guest.sh("taskset 1 cyclictest -q -p 80 -i 2000 -l 1000"),
        || {
            let deadline = window.area(0, offset_of!(GuestArea, deadline_tsc));
            if deadline != 0 && deadlines.last() != Some(&deadline) {
                deadlines.push(deadline);
            }
            window.intent(0).running == TaskIntent::fifo(80)
        },
    );
    assert!(urgent > 0, "the running task was never seen to be urgent");
    assert!(deadlines.len() > 100, "{} deadlines", deadlines.len());
    let latencies = window.latencies(0) - before;
    assert!((900..=1100).contains(&latencies), "{latencies} latencies of 1000");
    assert_eq!(window.area(0, offset_of!(GuestArea, pong)), 7);
    assert!(window.area(0, offset_of!(GuestArea, pong_tsc)) > 0);
    let report = |field| window.report(0, field);
    assert!(report(offset_of!(GuestReport, latency_max_ns)) > 0);
    assert_eq!(report(offset_of!(GuestReport, dropped)), 0);
}

/// Neither a timer that is armed for the past nor the kernel's watchdog spoils what it counts.
fn tells_how_late_it_was(guest: &Guest, window: &Window) {
    // A timer that is armed for a time that has passed is due when it is armed. Some kernels wake no task by it.
    let sum = || window.report(0, offset_of!(GuestReport, latency_sum_ns));
    let before = sum();
    guest.sh("taskset 1 wake past 5000000 500");
    assert!(sum() - before < 5_000_000_000, "{}", sum() - before);
    // The kernel's watchdog wakes no urgent task.
    let latencies = || [0, 1].map(|vcpu| window.latencies(vcpu));
    guest.sh("echo 1 >/proc/sys/kernel/watchdog_thresh");
    let before = latencies();
    guest.sh("sleep 2");
    assert_eq!(latencies(), before);
    guest.sh("echo 10 >/proc/sys/kernel/watchdog_thresh");
    // A task that has ended leaves no deadline behind.
    until("no deadline is left", || {
        guest.sh("true");
        window.area(0, offset_of!(GuestArea, deadline_tsc)) == 0
    });
}

/// What is due far away, and what another CPU wakes.
fn tells_what_is_due_and_who_is_woken(guest: &Guest, window: &Window) {
    // A task that waits for ever is due later than any host looks ahead.
    let far = during(
        || guest.sh("timeout 1 taskset 1 chrt -f 30 sleep 99999999999 || true"),
        || window.area(0, offset_of!(GuestArea, deadline_tsc)) > 1 << 56,
    );
    assert!(far > 0, "a timeout for ever was never seen");

    // A task that another CPU wakes is that CPU's word.
    let remote = || Remote::from_word(window.area(1, offset_of!(GuestArea, remote)));
    let before = remote().count;
    guest.sh("mkfifo /tmp/pipe; (taskset 2 chrt -f 30 cat /tmp/pipe >/dev/null & )");
    let told = during(
        || {
            guest.sh(
                "taskset 1 sh -c 'for i in $(seq 20); do echo $i; usleep 10000; done >/tmp/pipe'",
            )
        },
        || remote().task == TaskIntent::fifo(30),
    );
    assert!(told > 0 && remote().count > before, "{:?} {}", remote(), guest.state());
}

/// A fair task with a lock for which an urgent task of another CPU waits is urgent, and no longer than that.
fn tells_who_holds_up_an_urgent_task(guest: &Guest, window: &Window) {
    const TURNS: u64 = 10;
    let remote = || Remote::from_word(window.area(0, offset_of!(GuestArea, remote)));
    let before = remote().count;
    let (mut looks, mut held_up) = (0, 0);
    let told = during(
        || guest.sh(&format!("wake hold 20000 {TURNS}")),
        || {
            let Intent { running, pending, idle } = window.intent(0);
            let runs = !idle && running.class == Class::Fair;
            looks += u32::from(runs);
            held_up += u32::from(runs && pending == Some(TaskIntent::fifo(50)));
            remote().task == TaskIntent::fifo(50)
        },
    );
    let turns = remote().count - before;
    assert!(told > 0 && turns > TURNS / 2, "{turns} {:?} {}", remote(), guest.state());
    // It has the lock for a third of the time.
    assert!(held_up * 2 < looks, "{held_up} of {looks}");
}

/// It rings for a deadline that the host cannot know. Nothing here reacts to it.
fn rings(guest: &Guest, window: &Window) {
    let doorbell = offset_of!(WindowHeader, doorbell) as u64;
    assert!(guest.state().contains(" rang 0,"), "{}", guest.state());
    window.write(doorbell, Doorbell { valid: true, peer: 1, vector: 0 }.to_word());
    guest.sh("taskset 1 cyclictest -q -p 80 -i 1000 -l 50");
    let rang = || -> u32 {
        let state = guest.state();
        let rang = state.split(" rang ").nth(1).and_then(|s| s.split(',').next());
        rang.and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{state}"))
    };
    assert!(rang() > 0);
    // ... and when it goes idle, if it is asked to.
    let tell_idle = |wanted| {
        window.write(host_page(0) + offset_of!(HostArea, tell_idle) as u64, wanted);
    };
    let sleeps = || {
        let before = rang();
        guest.sh("taskset 1 sh -c 'for i in $(seq 50); do usleep 5000; done'");
        rang() - before
    };
    assert!(sleeps() < 20);
    tell_idle(1);
    assert!(sleeps() >= 50);
    tell_idle(0);
    window.write(doorbell, 0);
}

/// Boosted with nothing urgent to do: the guest ends it.
fn ends_boosts(guest: &Guest, window: &Window) {
    window.offer(Status::Boosted);
    let notified = window.report(0, offset_of!(GuestReport, notified));
    guest.sh("taskset 1 sh -c 'i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done'");
    assert!(window.report(0, offset_of!(GuestReport, notified)) > notified);
}

/// How often a fair task that was declared urgent ran on vCPU 1 while the guest ran a command.
fn declared(guest: &Guest, window: &Window, command: &str) -> u32 {
    during(
        || guest.sh(command),
        || {
            let running = window.intent(1).running;
            running.declared && running.class == Class::Fair
        },
    )
}

/// Wakes up a hundred times.
const BUSY: &str = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); usleep 1000; done";

/// A fair task is urgent if its nice value says so, and it is told how late it was.
fn tells_who_is_nice(guest: &Guest, window: &Window) {
    // The class of a task is told when it is switched to.
    let nice = format!("taskset 2 nice -n -5 sh -c '{BUSY}'");
    assert_eq!(declared(guest, window, &nice), 0);
    guest.sh(&format!("echo -5 >{PARAMETERS}/urgent_nice"));
    let before = window.latencies(1);
    assert!(declared(guest, window, &nice) > 0, "{}", guest.state());
    let latencies = window.latencies(1) - before;
    assert!((90..=110).contains(&latencies), "{latencies} latencies of 100");
    guest.sh(&format!("echo -21 >{PARAMETERS}/urgent_nice"));
}

/// With PREEMPT_RT. A thread that handles softirqs is preempted, and those who run then are in none.
fn softirqs_are_their_threads_work(guest: &Guest, window: &Window) {
    let seen = during(
        || {
            let hog = "taskset 1 nice -n -10 timeout 1 sh -c 'while :; do :; done'";
            guest
                .sh(&format!("({hog} & taskset 1 cyclictest -q -p 80 -i 1000 -l 800 & wait); true"))
        },
        || CsState::from_word(window.area(0, offset_of!(GuestArea, cs))).softirq > 0,
    );
    assert_eq!(seen, 0);
}

/// ... or by its cgroup, or by the slice that it has asked for.
fn tells_who_is_declared_urgent(guest: &Guest, window: &Window) {
    let declared = |command: &str| declared(guest, window, command);
    guest.sh(&format!(
        "mkdir -p /tmp/cg; mount -t cgroup2 none /tmp/cg; \
         mkdir -p /tmp/cg/audio/one; echo /audio >{PARAMETERS}/urgent_cgroup"
    ));
    let member = format!("taskset 2 sh -c 'echo $$ >/tmp/cg/audio/one/cgroup.procs; {BUSY}'");
    assert!(declared(&member) > 0, "{}", guest.state());
    // One whose group has used up its CPU quota does not wait for the vCPU.
    guest.sh("echo +cpu >/tmp/cg/cgroup.subtree_control; echo 5000 100000 >/tmp/cg/audio/cpu.max");
    let spin = "taskset 2 timeout 3 sh -c";
    let limited = "'echo $$ >/tmp/cg/audio/one/cgroup.procs; while :; do :; done'";
    let (mut waits, mut runs) = (0, 0);
    during(
        || {
            guest.sh(&format!(
                "({spin} {limited} & {spin} {limited} & {spin} 'while :; do :; done' & wait); true"
            ))
        },
        || {
            let Intent { running, pending, idle } = window.intent(1);
            let is_other = !idle && !running.declared;
            runs += u32::from(is_other);
            waits += u32::from(is_other && pending.is_some_and(|task| task.declared));
            false
        },
    );
    assert!(runs > 100 && waits < runs / 3, "{waits} of {runs}");
    assert!(
        guest.vm.run(&format!("echo /none >{PARAMETERS}/urgent_cgroup"), LIMIT).unwrap().status > 0
    );

    // ... or by the slice that it has asked for, on a kernel that knows slices of tasks.
    let kernel = guest.sh("uname -r");
    let version: Vec<u32> = kernel.split('.').map_while(|n| n.parse().ok()).collect();
    let set_slice = format!("echo 1000 >{PARAMETERS}/urgent_slice_us");
    let sliced = "taskset 2 wake slice 700 100";
    if version < vec![6, 12] {
        assert!(guest.vm.run(&set_slice, LIMIT).unwrap().status > 0, "{kernel}");
    } else {
        assert_eq!(declared(sliced), 0);
        guest.sh(&set_slice);
        assert!(declared(sliced) > 0, "{}", guest.state());
        assert_eq!(declared("taskset 2 wake slice 1500 100"), 0);
        guest.sh(&format!("echo 0 >{PARAMETERS}/urgent_slice_us"));
    }
}

/// Deadline tasks are urgent as RT tasks are, and their timers are deadlines.
fn tells_of_deadline_tasks(guest: &Guest, window: &Window) {
    let (mut runs, mut deadlines) = (0, 0);
    during(
        || guest.sh("wake deadline 500 300"),
        || {
            let is = |vcpu| window.intent(vcpu).running.class == Class::Deadline;
            let due = |vcpu| window.area(vcpu, offset_of!(GuestArea, deadline_tsc)) != 0;
            runs += u32::from((0..2).any(is));
            deadlines += u32::from((0..2).any(due));
            false
        },
    );
    assert!(runs > 0 && deadlines > 0, "{runs} {deadlines}: {}", guest.state());
    guest.sh(&format!("echo 0 >{PARAMETERS}/urgent_rt"));
    let urgent = during(
        || guest.sh("taskset 1 cyclictest -q -p 80 -i 1000 -l 100"),
        || window.intent(0).running.is_urgent(),
    );
    assert_eq!(urgent, 0);
    guest.sh(&format!("echo 1 >{PARAMETERS}/urgent_rt"));
}

/// What the host would like to be used is said where the host says so, and asks for the clock.
fn is_told_which_vcpus_are_preferred(guest: &Guest, window: &Window) {
    let preferred = || guest.sh(&format!("cat {PARAMETERS}/preferred"));
    assert_eq!(preferred(), "\n");
    let host = |vcpu, field: usize, word| window.write(host_page(vcpu) + field as u64, word);
    host(0, offset_of!(HostArea, preferred), 0b10);
    let hints = Hints { preferred_valid: true, ..Hints::default() };
    host(0, offset_of!(HostArea, hints), hints.to_word());
    host(0, offset_of!(HostArea, ping), 8);
    assert_eq!(preferred(), "1\n");
    host(0, offset_of!(HostArea, hints), 0);
    assert_eq!(preferred(), "\n");
}

/// The guest stops talking to a host that has gone.
fn talks_to_nobody_without_a_host(guest: &Guest, window: &Window) {
    window.offer(Status::Disabled);
    guest.sh("true");
    let intents = || [0, 1].map(|vcpu| window.area(vcpu, offset_of!(GuestArea, intent)));
    let (before, counted) = (intents(), window.events());
    guest.sh("taskset 1 cyclictest -q -p 80 -i 1000 -l 200");
    assert_eq!(intents(), before);
    assert!(window.events() > counted);
}

/// Unloaded while boosted: the header says so, and the words say that nothing is urgent.
fn unloads_while_boosted(guest: &Guest, window: &Window) {
    window.offer(Status::Boosted);
    let registration = window.header(offset_of!(WindowHeader, registration));
    let state = guest.state();
    let missing = state.split("\nmissing:").nth(1).and_then(|s| s.lines().next()).unwrap();
    assert_eq!(missing, "", "{state}");
    guest.sh("rmmod vcoop");
    assert!(!window.is_registered());
    for vcpu in 0..2 {
        assert_eq!(window.intent(vcpu), Intent::default());
        let request = window.area(vcpu, offset_of!(GuestArea, request));
        assert_eq!(BoostRequest::from_word(request), BoostRequest::None);
    }
    guest.assert_gone();
    guest.load("");
    assert_ne!(window.header(offset_of!(WindowHeader, registration)), registration);
    guest.sh("rmmod vcoop");
    guest.assert_healthy();
}

test!("6.1", a_driver_comes_and_goes_under_load, || -> Outcome {
    let window = Window::new("load");
    let guest = Guest::start(have(Kernel::get())?, &window)?;
    window.offer(Status::Boosted);
    // Timers, wake-ups, switches and new tasks, all the time. With a busy loop beside it, the kernel
    // needs a second to attach all hooks.
    guest.sh("for cpu in 1 2; do (taskset $cpu cyclictest -q -p 70 -i 2500 >/dev/null & ); done; \
         (while :; do date; usleep 10000; done >/dev/null & )");
    // Once in some thousand times QEMU executes a breakpoint that the kernel has already replaced. Both
    // vCPUs then stay in its handler, and this test needs its second attempt.
    for _ in 0..20 {
        guest.sh("insmod /lib/modules/vcoop.ko && rmmod vcoop");
    }
    assert!(!window.is_registered());

    // A vCPU goes offline and comes back, with timers on it.
    guest.load("");
    let online = |vcpu| {
        let word = window.report(vcpu, offset_of!(GuestReport, vcpu));
        Identity::from_word(word).online
    };
    let cpu1 = "/sys/devices/system/cpu/cpu1/online";
    for _ in 0..3 {
        assert!(online(0) && online(1));
        guest.sh(&format!("echo 0 >{cpu1}"));
        assert!(online(0) && !online(1));
        assert_eq!(window.area(1, offset_of!(GuestArea, deadline_tsc)), 0);
        assert_eq!(window.area(1, offset_of!(GuestArea, header)), 0);
        assert_eq!(window.intent(1), Intent::default());
        guest.sh(&format!("echo 1 >{cpu1}"));
    }
    until("the vCPU that came back tells", || {
        window.report(1, offset_of!(GuestReport, events)) > 100
    });
    // One that is away when the driver comes takes part when it comes.
    guest.sh(&format!("rmmod vcoop; echo 0 >{cpu1}; insmod /lib/modules/vcoop.ko"));
    assert!(online(0) && !online(1));
    guest.sh(&format!("echo 1 >{cpu1}"));
    assert!(online(1));
    guest.sh("killall cyclictest; rmmod vcoop");
    guest.assert_gone();

    // Before a kernel is restored that has hibernated, the registration ends. If none is, there is a new one.
    let restores = "touch /tmp/restores; (exec >/dev/snapshot 2>&1; \
                    while [ -e /tmp/restores ]; do usleep 10000; done) &";
    guest.load("");
    guest.sh(restores);
    until("the registration has ended", || !window.is_registered());
    guest.sh("rm /tmp/restores");
    until("there is a new one", || window.is_registered());
    // One begins once, also of a driver that came meanwhile.
    guest.sh("rmmod vcoop");
    guest.sh(restores);
    guest.load("");
    guest.sh(&format!("rm /tmp/restores; sleep 1; rmmod vcoop; echo 0 >{cpu1}; echo 1 >{cpu1}"));
    guest.assert_gone();

    // Its own memory is a window, too; and what is no window is none.
    guest.load("ram=1");
    let state = guest.state();
    let address = state.split("ram at 0x").nth(1).and_then(|s| s.split(',').next()).unwrap();
    assert_eq!(u64::from_str_radix(address, 16).unwrap() % window::RAM_ALIGNMENT, 0, "{state}");
    assert!(state.contains("vcpu 1: APIC id 1"), "{state}");
    guest.sh("cyclictest -q -p 80 -i 1000 -l 100; rmmod vcoop");

    // The device's memory by its address; the kernel's own memory is none.
    guest.load("");
    let state = guest.state();
    let address = state.split("pci at ").nth(1).and_then(|s| s.split(',').next()).unwrap();
    guest.sh("rmmod vcoop");
    guest.load(&format!("phys={address},{BYTES}"));
    assert!(window.is_registered());
    guest.sh("rmmod vcoop");
    let refused = |parameters: &str| {
        let command = format!("insmod /lib/modules/vcoop.ko {parameters}");
        guest.vm.run(&command, LIMIT).unwrap().status != 0
    };
    assert!(refused("ram=1 phys=0x1000,0x3000"));
    assert!(refused("phys=0x1000"));
    assert!(refused("phys=0x1000000,0x3000"));
    window.write(0, 0x1234_5678_9abc_def0);
    assert!(refused(""), "the memory is somebody else's");
    window.write(0, 0);

    // The device is unplugged.
    guest.load("");
    guest.sh("for d in /sys/bus/pci/devices/*; do [ $(cat $d/device) != 0x1110 ] || echo 1 >$d/remove; done");
    assert!(!window.is_registered() && !online(0) && !online(1));
    guest.sh("cyclictest -q -p 80 -i 1000 -l 100; rmmod vcoop; echo 1 >/sys/bus/pci/rescan");
    guest.load("");
    assert!(window.is_registered() && online(0) && online(1));
    guest.sh("rmmod vcoop");
    guest.assert_gone();
    guest.assert_healthy();
    Ok(())
});

test!("6.1", a_driver_survives_a_window_that_is_scribbled_over, || -> Outcome {
    let window = Window::new("scribble");
    let guest = Guest::start(have(Kernel::get())?, &window)?;
    window.offer(Status::Normal);
    guest.sh("for d in /sys/bus/pci/devices/*; do [ $(cat $d/device) = 0x1110 ] && \
         (scribble $d/resource2 1 3 >/tmp/scribbled & ); done; sleep 0.3; \
         insmod /lib/modules/vcoop.ko; cyclictest -q -p 80 -i 500 -t 2 -D 4");
    let words = guest.sh("cat /tmp/scribbled");
    let words: u64 = words.split(' ').next().unwrap().parse().unwrap();
    assert!(words > 1000, "{words}");
    guest.state();
    guest.sh("rmmod vcoop");
    guest.assert_gone();
    guest.assert_healthy();

    // A guest that reboots has said so.
    window.write(0, 0);
    window.write(offset_of!(WindowHeader, guest) as u64, 0);
    guest.load("");
    assert!(window.is_registered());
    guest.sh("(sleep 1; reboot -f) >/dev/null 2>&1 &");
    until("the registration has ended", || !window.is_registered());
    Ok(())
});

fn main() -> std::process::ExitCode {
    vcoop_testing::layer_main()
}
