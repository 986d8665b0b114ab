// SPDX-License-Identifier: GPL-2.0
/* One vCPU: its half, its page in the window, what it tells other vCPUs. */
#include <linux/atomic.h>
#include <linux/smp.h>
#include <asm/processor.h>

#include "vcoop.h"

DEFINE_PER_CPU(struct vcoop_vcpu, vcoop_vcpus) = {
	.timers.lock = __ARCH_SPIN_LOCK_UNLOCKED,
};

/*
 * A host that is rung may take the boost away at once. A switch holds the lock of its run queue, and
 * other vCPUs would spin on it until the host lets this one run again.
 */
static bool has_lock(const struct vcoop_event *event)
{
	return num_online_cpus() > 1 && (event->kind == VCOOP_TASK_SWITCH ||
					 event->kind == VCOOP_IDLE_ENTER);
}

void vcoop_vcpu_event(struct vcoop_vcpu *vcpu, const struct vcoop_event *event)
{
	struct vcoop_guest_page *page = vcpu->page;
	bool notify, asked;

	vcpu->half.expecting = vcoop_deadline_is_near(vcpu);
	notify = vcoop_half_run(&vcpu->half, event, &page->area, vcoop_host_of(vcpu));
	if (!page)
		return;
	vcoop_count(&page->report.events);
	vcoop_host_pong(vcpu);
	vcoop_deadline_show(vcpu);
	asked = event->kind == VCOOP_IDLE_ENTER && vcoop_host_wants_idle(vcpu);
	if ((notify || asked) && has_lock(event)) {
		/* The end of that interrupt asks for the end of the boost again, and rings. */
		vcpu->owes_ring = asked;
		irq_work_queue(&vcpu->after_locks);
		return;
	}
	if (notify)
		vcoop_count(&page->report.notified);
	if (notify || asked || (vcpu->owes_ring && event->kind == VCOOP_IRQ_EXIT))
		vcoop_host_ring();
}

/*
 * What other CPUs have put here since the last look. due: the task is queued and
 * has not run, because no switch came in between.
 */
void vcoop_vcpu_remote(struct vcoop_vcpu *vcpu, bool due)
{
	u64 remote;

	if (!vcpu->page)
		return;
	remote = READ_ONCE(vcpu->page->area.remote);
	if (likely(remote == vcpu->remote))
		return;
	vcpu->remote = remote;
	if (due) {
		struct vcoop_event event = { .kind = VCOOP_RT_ENQUEUED, .task = remote };

		vcoop_vcpu_event(vcpu, &event);
	}
}

/* An urgent task was put on a CPU's queue, or is about to be. */
void vcoop_vcpu_enqueue(unsigned int cpu, u16 task)
{
	struct vcoop_vcpu *vcpu = per_cpu_ptr(&vcoop_vcpus, cpu);
	struct vcoop_guest_page *page = READ_ONCE(vcpu->page);
	u64 status, old;

	if (cpu == smp_processor_id()) {
		struct vcoop_event event = { .kind = VCOOP_RT_ENQUEUED, .task = task };

		vcoop_vcpu_event(vcpu, &event);
		return;
	}
	if (!page)
		return;
	status = vcoop_host_status(vcpu);
	if (vcoop_is_disabled(status))
		return;
	old = READ_ONCE(page->area.remote);
	while (!try_cmpxchg(&page->area.remote, &old,
			    ((old >> VCOOP_REMOTE_COUNT_SHIFT) + 1) << VCOOP_REMOTE_COUNT_SHIFT |
				    task))
		;
	if (status != VCOOP_STATUS_THROTTLED)
		vcoop_host_ring();
}

/* On the CPU itself. The page is cleared: it may hold an earlier registration's words. */
void vcoop_vcpu_online(unsigned int cpu)
{
	struct vcoop_vcpu *vcpu = per_cpu_ptr(&vcoop_vcpus, cpu);
	struct vcoop_guest_page *page = vcoop_guest_page(cpu);
	unsigned long flags;

	if (!page)
		return;
	local_irq_save(flags);
	memset(page, 0, sizeof(*page));
	vcpu->half.valid = false;
	vcpu->owes_ring = false;
	vcpu->remote = 0;
	vcpu->pong = 0;
	vcoop_deadline_forget(vcpu);
	WRITE_ONCE(page->area.header, VCOOP_HEADER);
	WRITE_ONCE(page->report.vcpu, VCOOP_VCPU_ONLINE | cpu_physical_id(cpu));
	WRITE_ONCE(vcpu->page, page);
	local_irq_restore(flags);
}

/* On the CPU itself. What happens there from now on is nobody's business. */
void vcoop_vcpu_offline(unsigned int cpu)
{
	struct vcoop_vcpu *vcpu = per_cpu_ptr(&vcoop_vcpus, cpu);
	struct vcoop_guest_page *page = vcpu->page;
	unsigned long flags;

	if (!page)
		return;
	local_irq_save(flags);
	WRITE_ONCE(vcpu->page, NULL);
	vcoop_deadline_forget(vcpu);
	/* First: what follows are not words of a vCPU any more. */
	WRITE_ONCE(page->report.vcpu, cpu_physical_id(cpu));
	virt_store_release(&page->area.header, 0);
	virt_store_release(&page->area.intent, 0);
	virt_store_release(&page->area.cs, 0);
	virt_store_release(&page->area.request, VCOOP_REQUEST_NONE);
	virt_store_release(&page->area.deadline_tsc, 0);
	local_irq_restore(flags);
}
