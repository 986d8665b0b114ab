/* SPDX-License-Identifier: GPL-2.0 */
/*
 * KVM's fields that are read. CO-RE: they are found by their names in the running kernel's types.
 */
#ifndef VCOOP_KVM_H
#define VCOOP_KVM_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

typedef _Bool bool;

#define READ __attribute__((preserve_access_index))
struct upid { int nr; } READ;
struct pid { struct upid numbers[1]; } READ;
struct kvm_lapic;
struct kvm_vcpu_arch { struct kvm_lapic *apic; unsigned long long last_guest_tsc; unsigned int virtual_tsc_khz; } READ;
struct kvm_vcpu { struct pid *pid; bool preempted; struct kvm_vcpu_arch arch; } READ;
struct kvm_lapic { struct kvm_vcpu *vcpu; bool irr_pending; bool apicv_active; } READ;

/* Whether a vCPU that enters its guest has interrupts that the guest cannot take now, because it has disabled them. */
static bool is_owed(const struct kvm_vcpu *vcpu)
{
	const struct kvm_lapic *apic = BPF_CORE_READ(vcpu, arch.apic);

	/* A virtual APIC in hardware delivers them itself, and the flag has no meaning. */
	return apic && bpf_core_field_exists(apic->apicv_active) && !BPF_CORE_READ(apic, apicv_active) &&
	       BPF_CORE_READ(apic, irr_pending);
}

#endif
