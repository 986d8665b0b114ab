//! VMs are found, and their vCPUs are those that the guest knows.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use vcoop_stock::{Options, StockVm, program};
use vcoop_testing::{ProgramOutput, Skip, test};

use crate::vcoop::{VCOOP, guest, vm_of};

vcoop_testing::concurrent!();

const SECOND: Duration = Duration::from_secs(1);

fn ran(vm: &Value) -> Vec<u64> {
    vm["vcpus"].as_array().unwrap().iter().map(|v| v["ran_ns"].as_u64().unwrap()).collect()
}

/// What the guest does on one of its CPUs is what the host sees of that vCPU's thread.
fn vcpus_are_the_guests(vm: &StockVm, args: &[&str]) {
    for busy in 0..2 {
        let before = ran(&vm_of(vm.pid(), args));
        let spin = format!("taskset {} timeout 1 sh -c 'while :; do :; done'", 1 << busy);
        let output = vm.run(&spin, 10 * SECOND).unwrap();
        assert_eq!(output.status, 143, "{output:?}");
        let after = ran(&vm_of(vm.pid(), args));
        let ran: Vec<u64> = before.iter().zip(&after).map(|(b, a)| a - b).collect();
        assert!(ran[busy] > 2 * ran[1 - busy], "vCPU {busy} was busy, and they ran {ran:?}");
    }
}

test!("qemu", a_booted_guest_is_found_by_its_threads_names, || {
    let vm = guest(&Options { name: "named".into(), vcpus: 2, ..Options::default() })?;
    let found = vm_of(vm.pid(), &[]);
    assert_eq!(
        (&found["name"], &found["vmm"], &found["accel"]),
        (&json!("named"), &json!("QEMU"), &json!("TCG"))
    );
    let sources = found["vcpus"].as_array().unwrap().iter().map(|v| &v["source"]);
    assert_eq!(sources.collect::<Vec<_>>(), ["thread name", "thread name"]);
    vcpus_are_the_guests(&vm, &[]);
    Ok(())
});

test!("qemu", a_booted_guest_is_asked_over_qmp, || {
    let options =
        Options { name: "asked".into(), vcpus: 2, debug_threads: false, ..Options::default() };
    let vm = guest(&options)?;
    assert_eq!(vm_of(vm.pid(), &[])["vcpus"], json!([]));
    let socket = vm.qmp();
    let args = ["--qmp", socket.to_str().unwrap()];
    let found = vm_of(vm.pid(), &args);
    assert_eq!(found["name"], "asked");
    let sources = found["vcpus"].as_array().unwrap().iter().map(|v| &v["source"]);
    assert_eq!(sources.collect::<Vec<_>>(), ["QMP", "QMP"]);
    vcpus_are_the_guests(&vm, &args);
    Ok(())
});

test!("libvirt", a_domain_is_found_by_libvirts_name, || {
    for name in ["libvirtd", "virtlogd", "virsh"] {
        let packages = "libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients";
        program(name, packages).map_err(Skip::because)?;
    }
    let alone = Command::new("unshare").args(["-m", "true"]).output();
    if !alone.is_ok_and(|output| output.status.success()) {
        return Err(Skip::because("no mount namespace of one's own here; run it as root"));
    }
    let name = format!("vcoop-test-{}", std::process::id());
    let mut script = Command::new("unshare")
        .args(["-m", "sh", "-s", VCOOP, &name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    script.stdin.take().unwrap().write_all(include_bytes!("libvirt.sh")).unwrap();
    let said = ProgramOutput::from(script.wait_with_output().unwrap()).well().out;
    let mut documents = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
    let mut next = || documents.next().unwrap_or_else(|| panic!("{said}")).unwrap();
    let (libvirts, ours) = (next(), next());
    let found = ours["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == *name);
    let found = found.unwrap_or_else(|| panic!("{said}"));
    assert_eq!((&found["vmm"], &found["accel"]), (&json!("QEMU"), &json!("TCG")));
    let name_source = json!({ "fact": "name", "source": "libvirt" });
    assert!(found["sources"].as_array().unwrap().contains(&name_source), "{found}");
    let threads = |of: &Value, index: &str, tid: &str| -> Vec<(Value, Value)> {
        of.as_array().unwrap().iter().map(|v| (v[index].clone(), v[tid].clone())).collect()
    };
    let theirs = threads(&libvirts["return"], "cpu-index", "thread-id");
    assert_eq!(threads(&found["vcpus"], "index", "tid"), theirs);
    assert_eq!(theirs.len(), 2);
    assert!(found["vcpus"].as_array().unwrap().iter().all(|v| v["source"] == "libvirt"));
    Ok(())
});
