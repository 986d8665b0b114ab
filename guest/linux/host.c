// SPDX-License-Identifier: GPL-2.0
/* What a vCPU and the host say to each other, but for the words of the guest half. */
#include <asm/barrier.h>

#include "vcoop.h"

/* The area after the vCPU's page. Without a host, what is there is old. */
const struct vcoop_host_area *vcoop_host_of(const struct vcoop_vcpu *vcpu)
{
	const struct vcoop_guest_page *page = READ_ONCE(vcpu->page);

	return page && vcoop_host_is_there() ? vcoop_host_area(page) : NULL;
}

u64 vcoop_host_status(const struct vcoop_vcpu *vcpu)
{
	return vcoop_view_of(vcoop_host_of(vcpu)).status;
}

/* After the intent word says idle: the host sets its word before it looks at that one. */
bool vcoop_host_wants_idle(const struct vcoop_vcpu *vcpu)
{
	const struct vcoop_host_area *host = vcoop_host_of(vcpu);

	if (!host)
		return false;
	virt_mb();
	return READ_ONCE(host->tell_idle);
}

static void answer(struct vcoop_vcpu *vcpu, u64 ping)
{
	vcpu->pong = ping;
	WRITE_ONCE(vcpu->page->area.pong_tsc, rdtsc_ordered());
	virt_store_release(&vcpu->page->area.pong, ping);
}

static u64 ping(const struct vcoop_vcpu *vcpu)
{
	return READ_ONCE(vcoop_host_area(vcpu->page)->ping);
}

/* The host's question about the clock; both words tell how its own and the guest's differ. */
void vcoop_host_pong(struct vcoop_vcpu *vcpu)
{
	u64 asked = ping(vcpu);

	if (likely(asked == vcpu->pong))
		return;
	/* The kernel measures it again some seconds after it has booted. */
	if (unlikely(vcoop_window.header->tsc_khz != tsc_khz))
		WRITE_ONCE(vcoop_window.header->tsc_khz, tsc_khz);
	answer(vcpu, asked);
}

/* A host that is rung looks at once: no other answer about the clock is as good. */
void vcoop_host_ring(void)
{
	struct vcoop_vcpu *vcpu = this_cpu_ptr(&vcoop_vcpus);

	vcpu->owes_ring = false;
	if (vcpu->page)
		answer(vcpu, ping(vcpu));
	if (vcoop_ring())
		vcpu->rang++;
}
