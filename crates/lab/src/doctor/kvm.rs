//! Findings about KVM.

use kvm_bindings::KVM_CAP_HALT_POLL;
use kvm_ioctls::Kvm;

use super::Finding;
use crate::environment::{flavour, has_reliable_tsc};
use crate::facts::Root;
use crate::run::{CAPABILITIES, available};

pub(super) fn findings(root: &Root) -> Vec<Finding> {
    let mut found = vec![lab()];
    match Kvm::new() {
        Err(e) => found.push(Finding::missing(
            "/dev/kvm",
            std::io::Error::from_raw_os_error(e.errno()).to_string(),
            match e.errno() {
                libc::EACCES | libc::EPERM => "join the group that owns /dev/kvm, or be root",
                _ => "load kvm_intel or kvm_amd",
            },
        )),
        Ok(kvm) => {
            found.push(Finding::ok("/dev/kvm", format!("API version {}", kvm.get_api_version())));
            found.push(capabilities(&kvm));
            found.push(flavoured());
            found.push(halt_polling(root, &kvm));
            found.extend(parameter(root));
        }
    }
    found.push(tsc(root));
    found
}

fn lab() -> Finding {
    match available() {
        Ok(()) => Finding::ok("micro-VM lab", "runs here"),
        Err(missing) => Finding::missing("micro-VM lab", missing.what, &missing.remedy),
    }
}

fn capabilities(kvm: &Kvm) -> Finding {
    const NAME: &str = "KVM capabilities";
    let lacks: Vec<&str> = CAPABILITIES
        .into_iter()
        .filter(|(cap, _)| !kvm.check_extension(*cap))
        .map(|(_, n)| n)
        .collect();
    if lacks.is_empty() {
        let names: Vec<&str> = CAPABILITIES.iter().map(|(_, name)| *name).collect();
        return Finding::ok(NAME, names.join(", "));
    }
    Finding::missing(NAME, format!("this KVM lacks {}", lacks.join(", ")), "use a newer kernel")
}

fn flavoured() -> Finding {
    match flavour() {
        which @ ("vmx" | "svm") => Finding::ok("KVM flavour", which),
        other => Finding::limited(
            "KVM flavour",
            format!("{other}: kernel code of guests is emulated, at microseconds an exit"),
            "compare ratios, or measure on a host with VMX or SVM",
        ),
    }
}

fn halt_polling(root: &Root, kvm: &Kvm) -> Finding {
    const NAME: &str = "halt polling";
    let ns = root.text("sys/module/kvm/parameters/halt_poll_ns");
    let evidence = format!("halt_poll_ns = {}", ns.as_deref().unwrap_or("unknown"));
    if kvm.check_extension_raw(KVM_CAP_HALT_POLL.into()) > 0 {
        return Finding::ok(NAME, format!("{evidence}; can be set for each VM"));
    }
    Finding::limited(
        NAME,
        format!("{evidence}; cannot be set for each VM"),
        "use Linux 5.10 or later; until then every VM polls as the module says",
    )
}

/// Who fires the guest's deadline, and whether interrupts reach a running guest without an exit.
fn parameter(root: &Root) -> Vec<Finding> {
    let on = |path: &str| root.text(&format!("sys/module/{path}")).map(|v| v == "Y" || v == "1");
    let posted = on("kvm_intel/parameters/enable_apicv").or_else(|| on("kvm_amd/parameters/avic"));
    let timer = on("kvm_intel/parameters/preemption_timer");
    let state = |name: &str, value: Option<bool>, off: &str| match value {
        Some(true) => Finding::ok(name, "on"),
        Some(false) => Finding::limited(name, "off", off),
        None => Finding::limited(
            name,
            "not on this KVM",
            "measure on a host that has it; here it costs exits, as in what calibrate finds",
        ),
    };
    vec![
        state("VMX preemption timer", timer, "load kvm_intel with preemption_timer=1"),
        state(
            "posted interrupts",
            posted,
            "load kvm_intel with enable_apicv=1, kvm_amd with avic=1",
        ),
    ]
}

fn tsc(root: &Root) -> Finding {
    let source = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = root.text(source).unwrap_or_else(|| "unknown".to_owned());
    if has_reliable_tsc() {
        return Finding::ok("TSC", "the kernel's own clock: constant, and the same on all CPUs");
    }
    Finding::missing(
        "TSC",
        format!("the kernel's clock is {source}: times taken on different CPUs cannot be compared"),
        "boot with clocksource=tsc if the TSC is constant and synchronous",
    )
}
