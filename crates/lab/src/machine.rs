//! A VM: memory, tables, vCPUs in their first state.

use std::os::fd::AsRawFd;

use kvm_bindings::{
    CpuId, KVM_CAP_HALT_POLL, KVM_CAP_X86_DISABLE_EXITS, KVM_CAP_X86_USER_SPACE_MSR,
    KVM_MEM_READONLY, KVM_MP_STATE_RUNNABLE, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET,
    kvm_cpuid_entry2, kvm_device_attr, kvm_enable_cap, kvm_mp_state, kvm_msi, kvm_regs,
    kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{
    IoEventAddress, Kvm, MsrExitReason, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags,
};
use kvm_ioctls::{VcpuFd, VmFd};
use vcoop_abi::discovery::{Discovery, Features, LEAF_BASE, MSR_REGISTER};
use vcoop_abi::layout::PAGE_SIZE;
use vcoop_abi::{Header, HostArea, Word};
use vcoop_guest::layout::{self, HEADER_MAGIC, gate, kernel_stack_top};

use crate::error::{Error, RequestTarget};
use crate::event_signal::EventSignal;
use crate::memory::Memory;

/// Interrupts on.
const RFLAGS: u64 = 0x202;

/// A VM, ready to run.
#[derive(Debug)]
pub(crate) struct Machine {
    // Dropped in this order: the VM lets go of its memory before the memory goes.
    vm: VmFd,
    /// Guest memory.
    pub(crate) ram: Memory,
    /// Host areas; read-only for the guest.
    pub(crate) window: Memory,
    pub(crate) name: String,
}

impl Machine {
    /// A VM with the guest image in its memory.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], naming the ioctl.
    pub(crate) fn new(kvm: &Kvm, name: &str, vcpus: u32) -> Result<Self, Error> {
        let whom = RequestTarget::Vm(name.to_owned());
        let vm = kvm.create_vm().map_err(Error::kvm("KVM_CREATE_VM", &whom))?;
        // Only VMX without unrestricted guest needs it; it must come before the first vCPU.
        vm.set_tss_address(0xfffb_d000).map_err(Error::kvm("KVM_SET_TSS_ADDR", &whom))?;
        vm.create_irq_chip().map_err(Error::kvm("KVM_CREATE_IRQCHIP", &whom))?;
        let ram = Memory::new(layout::RAM as usize, &whom)?;
        let window = Memory::new(vcpus as usize * PAGE_SIZE as usize, &whom)?;
        let machine = Self { vm, ram, window, name: name.to_owned() };
        machine.slot(0, 0, &machine.ram, 0)?;
        machine.slot(1, layout::HOST_WINDOW, &machine.window, KVM_MEM_READONLY)?;
        machine.trap_msrs()?;
        machine.write_tables(vcpus)?;
        for vcpu in 0..vcpus {
            let header = &machine.host_area(vcpu).header;
            header.store(Header::OURS.to_word(), std::sync::atomic::Ordering::Release);
        }
        Ok(machine)
    }

    /// The VM, for errors.
    pub(crate) fn target(&self) -> RequestTarget {
        RequestTarget::Vm(self.name.clone())
    }

    /// A vCPU, for errors.
    pub(crate) fn vcpu_target(&self, vcpu: u32) -> RequestTarget {
        RequestTarget::Vcpu(self.name.clone(), vcpu)
    }

    /// The page that the host writes for a vCPU.
    pub(crate) fn host_area(&self, vcpu: u32) -> &HostArea {
        self.window.at(u64::from(vcpu) * PAGE_SIZE)
    }

    fn slot(&self, slot: u32, gpa: u64, memory: &Memory, flags: u32) -> Result<(), Error> {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: gpa,
            memory_size: memory.len(),
            userspace_addr: memory.host_address(),
        };
        map_slot(&self.vm, region).map_err(Error::kvm("KVM_SET_USER_MEMORY_REGION", &self.target()))
    }

    /// Makes our MSRs exit to user space, and no others.
    fn trap_msrs(&self) -> Result<(), Error> {
        let reasons = MsrExitReason::Filter | MsrExitReason::Unknown;
        let cap = kvm_enable_cap {
            cap: KVM_CAP_X86_USER_SPACE_MSR,
            args: [u64::from(reasons.bits()), 0, 0, 0],
            ..kvm_enable_cap::default()
        };
        let whom = self.target();
        self.vm.enable_cap(&cap).map_err(Error::kvm("KVM_CAP_X86_USER_SPACE_MSR", &whom))?;
        let ours = MsrFilterRange {
            flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
            base: MSR_REGISTER,
            msr_count: 2,
            // 0 = denied, which with the capability above means: exit.
            bitmap: &[0],
        };
        self.vm
            .set_msr_filter(MsrFilterDefaultAction::ALLOW, &[ours])
            .map_err(Error::kvm("KVM_X86_SET_MSR_FILTER", &whom))
    }

    /// Limits how long KVM polls for a halted vCPU's wake-up.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn poll_halts(&self, max_ns: u64) -> Result<(), Error> {
        self.enable(KVM_CAP_HALT_POLL, "KVM_CAP_HALT_POLL", max_ns)
    }

    /// Makes instructions not exit, by `KVM_X86_DISABLE_EXITS_*`. Before the first vCPU.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn exits_off(&self, bits: u32) -> Result<(), Error> {
        if bits == 0 {
            return Ok(());
        }
        self.enable(KVM_CAP_X86_DISABLE_EXITS, "KVM_CAP_X86_DISABLE_EXITS", bits.into())
    }

    fn enable(&self, cap: u32, name: &'static str, arg: u64) -> Result<(), Error> {
        let cap = kvm_enable_cap { cap, args: [arg, 0, 0, 0], ..kvm_enable_cap::default() };
        self.vm.enable_cap(&cap).map_err(Error::kvm(name, &self.target()))
    }

    /// Page tables, descriptors, gates and the image.
    fn write_tables(&self, vcpus: u32) -> Result<(), Error> {
        let ram = &self.ram;
        let image = vcoop_guest::IMAGE;
        ram.write(layout::IMAGE, image);
        let word = |i: u64| ram.read_word(layout::IMAGE + 8 * i);
        if word(0) != HEADER_MAGIC || image.len() as u64 > layout::IMAGE_MAX {
            let what = "the guest image was not built for this target".to_owned();
            return Err(Error::Guest { whom: self.target(), what });
        }
        const PRESENT_WRITE_USER: u64 = 7;
        const HUGE: u64 = 0x80;
        ram.write_words(layout::PML4, &[layout::PDPT | PRESENT_WRITE_USER]);
        ram.write_words(layout::PDPT, &[layout::PD | PRESENT_WRITE_USER]);
        // One 2 MiB page more than the memory has: the host areas.
        let pages = layout::RAM / 0x20_0000 + 1;
        let pd: Vec<u64> =
            (0..pages).map(|i| (i * 0x20_0000) | HUGE | PRESENT_WRITE_USER).collect();
        ram.write_words(layout::PD, &pd);
        let mut gdt = vec![
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00af_fb00_0000_ffff,
            0x00cf_f300_0000_ffff,
        ];
        for vcpu in 0..u64::from(vcpus) {
            let page = layout::GATES + vcpu * PAGE_SIZE;
            let tss = page + gate::TSS;
            gdt.extend([0x0000_8900_0000_0067 | (tss & 0xff_ffff) << 16, 0]);
            // It starts in the kernel.
            ram.write(page + gate::RSP0, &(page + gate::KERNEL_TOP).to_le_bytes());
            ram.write(page + gate::IST1, &(page + gate::NMI_TOP).to_le_bytes());
            ram.write_words(page + gate::NUMBER, &[vcpu]);
            ram.write_words(page + gate::STACK, &[kernel_stack_top(vcpu)]);
            for cause in 0..gate::CAUSES {
                let upcall = word(2 + gate::CAUSES + cause);
                let frame = frame(upcall, kernel_stack_top(vcpu), RFLAGS);
                ram.write_words(page + gate::UPCALLS + cause * gate::FRAME, &frame);
            }
        }
        ram.write_words(layout::GDT, &gdt);
        self.write_idt(&word);
        Ok(())
    }

    fn write_idt(&self, word: &dyn Fn(u64) -> u64) {
        const RING0: u64 = 0x8e;
        const RING3: u64 = 0xee;
        let set = |vector: u8, target: u64, access: u64, ist: u64| {
            let low = target & 0xffff
                | u64::from(layout::KERNEL_CS) << 16
                | ist << 32
                | access << 40
                | (target >> 16 & 0xffff) << 48;
            let at = layout::IDT + u64::from(vector) * 16;
            self.ram.write_words(at, &[low, target >> 32]);
        };
        let after = 2 + 2 * gate::CAUSES;
        for vector in 0..32 {
            set(vector, word(after + 2 + u64::from(vector)), RING0, 0);
        }
        set(2, word(after + 1), RING0, 1);
        set(3, word(after), RING3, 0);
        set(layout::VECTOR_TIMER, word(2), RING0, 0);
        set(layout::VECTOR_IPI, word(3), RING0, 0);
        set(layout::VECTOR_NMI_SELF, word(4), RING0, 0);
        for device in 0..layout::MAX_DEVICES as u8 {
            set(layout::VECTOR_DEVICE + device, word(2 + 4 + u64::from(device)), RING0, 0);
        }
    }

    /// A vCPU before its first instruction: ring 3, long mode, x2APIC, TSC equal to the host's. `dedicated`: CPUID says
    /// that it has its pCPU to itself (`KVM_HINTS_REALTIME`).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], naming the ioctl.
    pub(crate) fn vcpu(
        &self,
        kvm: &Kvm,
        n: u32,
        features: Features,
        dedicated: bool,
    ) -> Result<VcpuFd, Error> {
        let whom = self.vcpu_target(n);
        let vcpu =
            self.vm.create_vcpu(u64::from(n)).map_err(Error::kvm("KVM_CREATE_VCPU", &whom))?;
        let cpuid = cpuid(kvm, n, features, dedicated)
            .map_err(Error::kvm("KVM_GET_SUPPORTED_CPUID", &whom))?;
        vcpu.set_cpuid2(&cpuid).map_err(Error::kvm("KVM_SET_CPUID2", &whom))?;
        let mut s = vcpu.get_sregs().map_err(Error::kvm("KVM_GET_SREGS", &whom))?;
        s.cr3 = layout::PML4;
        // PAE, OSFXSR, OSXMMEXCPT.
        s.cr4 = 1 << 5 | 1 << 9 | 1 << 10;
        // PE, MP, ET, NE, WP, AM, PG.
        s.cr0 = 0x8005_0033;
        // LME, LMA.
        s.efer = 0x500;
        // Enabled, x2APIC.
        s.apic_base |= 0xc00;
        s.gdt.base = layout::GDT;
        s.gdt.limit = 0x27 + 16 * layout::MAX_VCPUS as u16;
        s.idt.base = layout::IDT;
        s.idt.limit = 0xfff;
        s.cs = segment(layout::USER_CS, 11, true);
        let data = segment(layout::USER_SS, 3, false);
        (s.ds, s.es, s.fs, s.ss) = (data, data, data, data);
        let page = layout::GATES + u64::from(n) * PAGE_SIZE;
        s.gs = kvm_segment { base: page, ..data };
        s.tr = kvm_segment {
            base: page + gate::TSS,
            limit: 0x67,
            selector: layout::TSS_SELECTOR + 16 * n as u16,
            type_: 11,
            present: 1,
            ..kvm_segment::default()
        };
        vcpu.set_sregs(&s).map_err(Error::kvm("KVM_SET_SREGS", &whom))?;
        let regs = kvm_regs {
            rip: self.ram.read_word(layout::IMAGE + 8),
            rsp: kernel_stack_top(u64::from(n)),
            rdi: u64::from(n),
            rflags: RFLAGS,
            ..kvm_regs::default()
        };
        vcpu.set_regs(&regs).map_err(Error::kvm("KVM_SET_REGS", &whom))?;
        // All but the first would wait for INIT and SIPI; ours are ready as they are.
        let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
        vcpu.set_mp_state(runnable).map_err(Error::kvm("KVM_SET_MP_STATE", &whom))?;
        set_tsc_offset_zero(&vcpu).map_err(Error::kvm("KVM_VCPU_TSC_OFFSET", &whom))?;
        Ok(vcpu)
    }

    /// Makes KVM signal `bell` when the guest writes this byte to a port. If KVM cannot, the vCPU's thread handles the
    /// write.
    pub(crate) fn ring_on_write(&self, port: u16, byte: u8, bell: &EventSignal) {
        let _ = self.vm.register_ioevent(bell.fd(), &IoEventAddress::Pio(port.into()), byte);
    }

    /// Sends an interrupt to a vCPU, or an NMI.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn signal(&self, vcpu: u32, vector: u8, nmi: bool) -> Result<(), Error> {
        let msi = kvm_msi {
            address_lo: 0xfee0_0000 | vcpu << 12,
            data: u32::from(vector) | if nmi { 4 << 8 } else { 0 },
            ..kvm_msi::default()
        };
        let sent = self.vm.signal_msi(msi);
        sent.map(|_| ()).map_err(Error::kvm("KVM_SIGNAL_MSI", &self.vcpu_target(vcpu)))
    }
}

fn frame(rip: u64, rsp: u64, rflags: u64) -> [u64; 5] {
    [rip, layout::USER_CS.into(), rflags, rsp, layout::USER_SS.into()]
}

fn segment(selector: u16, type_: u8, code: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: 3,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..kvm_segment::default()
    }
}

fn cpuid(
    kvm: &Kvm,
    n: u32,
    features: Features,
    dedicated: bool,
) -> Result<CpuId, kvm_ioctls::Error> {
    /// `KVM_CPUID_FEATURES`, and in its edx `KVM_HINTS_REALTIME`.
    const KVM_FEATURES: u32 = 0x4000_0001;
    const REALTIME: u32 = 1;
    let supported = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES - 2)?;
    let mut entries = supported.as_slice().to_vec();
    for e in &mut entries {
        match e.function {
            1 => {
                // x2APIC and TSC deadline: emulated by KVM, and not always listed.
                e.ecx |= 1 << 21 | 1 << 24;
                e.ebx = e.ebx & 0x00ff_ffff | n << 24;
            }
            0xb | 0x1f => e.edx = n,
            KVM_FEATURES if dedicated => e.edx |= REALTIME,
            _ => {}
        }
    }
    let discovery = Discovery {
        abi: vcoop_abi::ABI_VERSION,
        protocol: vcoop_abi::PROTOCOL,
        features,
        host_window: layout::HOST_WINDOW,
    };
    for (i, [eax, ebx, ecx, edx]) in discovery.leaves(LEAF_BASE).into_iter().enumerate() {
        let function = LEAF_BASE + i as u32;
        entries.push(kvm_cpuid_entry2 { function, eax, ebx, ecx, edx, ..Default::default() });
    }
    CpuId::from_entries(&entries).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))
}

/// Maps a slot of memory that outlives the VM.
#[allow(unsafe_code, reason = "hands a range of our memory to the kernel")]
fn map_slot(vm: &VmFd, region: kvm_userspace_memory_region) -> Result<(), kvm_ioctls::Error> {
    // SAFETY: the range is a `Memory` that the machine owns beside the VM and drops after it; the
    // slots do not overlap.
    unsafe { vm.set_user_memory_region(region) }
}

/// Makes the guest's TSC the host's, so that both sides can compare times.
#[allow(unsafe_code, reason = "kvm-ioctls has no vCPU device attributes on x86")]
fn set_tsc_offset_zero(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    /// `_IOW(KVMIO, 0xe1, struct kvm_device_attr)`.
    const KVM_SET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee1;
    let zero = 0_u64;
    let attr = kvm_device_attr {
        flags: 0,
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: &raw const zero as u64,
    };
    // SAFETY: a vCPU's descriptor, the structure the ioctl reads, and in it the address of a word
    // that it reads; all live during the call.
    let rc = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR, &raw const attr) };
    if rc == 0 { Ok(()) } else { Err(kvm_ioctls::Error::last()) }
}
