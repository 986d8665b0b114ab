// SPDX-License-Identifier: GPL-2.0
/* One vCPU: its half, its page in the window, what it tells other vCPUs. */
#include <linux/atomic.h>
#include <linux/smp.h>
#include <asm/processor.h>
#include <asm/tsc.h>

#include "vcoop.h"

DEFINE_PER_CPU(struct vcoop_vcpu, vcoop_vcpus);

/*
 * Tasks that a timer has woken, and when it was due. Tasks that share an entry
 * overwrite each other's: their latencies are not counted then.
 */
#define DUE_TASKS 256

/* More than any host boosts ahead of a deadline. */
#define SOON_NS (300 * NSEC_PER_USEC)

static struct {
	pid_t pid;
	u64 tsc;
} due_tasks[DUE_TASKS];

/* Without a host, what its area says is old. */
static const struct vcoop_host_area *host_of(const struct vcoop_vcpu *vcpu)
{
	return vcpu->page && vcoop_host_is_there() ? vcpu->host : NULL;
}

u64 vcoop_vcpu_status(const struct vcoop_vcpu *vcpu)
{
	return vcoop_view_of(host_of(vcpu)).status;
}

static void answer(struct vcoop_vcpu *vcpu, u64 ping)
{
	vcpu->pong = ping;
	WRITE_ONCE(vcpu->page->area.pong_tsc, rdtsc_ordered());
	virt_store_release(&vcpu->page->area.pong, ping);
}

/* A host that is rung looks at once: no other answer about the clock is as good. */
void vcoop_vcpu_ring(void)
{
	struct vcoop_vcpu *vcpu = this_cpu_ptr(&vcoop_vcpus);

	vcpu->owes_ring = false;
	if (vcpu->page)
		answer(vcpu, READ_ONCE(vcpu->host->ping));
	if (vcoop_ring())
		vcpu->rang++;
}

/*
 * A host boosts shortly before a deadline. An interrupt that comes in between does
 * not end that boost: the deadline's own will.
 */
static bool has_deadline_soon(const struct vcoop_vcpu *vcpu)
{
	u64 next = READ_ONCE(vcpu->timers.next);
	s64 left = next - rdtsc();

	return next && left < (s64)vcoop_ns_to_tsc(SOON_NS) &&
	       left > -(s64)vcoop_ns_to_tsc(SOON_NS);
}

/* After the intent word says idle: the host sets its word before it looks at that one. */
static bool is_asked_for_idle(const struct vcoop_vcpu *vcpu)
{
	const struct vcoop_host_area *host = host_of(vcpu);

	if (!host)
		return false;
	virt_mb();
	return READ_ONCE(host->tell_idle);
}

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
	bool notify, asked;

	vcpu->half.expecting = has_deadline_soon(vcpu);
	notify = vcoop_half_run(&vcpu->half, event, &vcpu->page->area, host_of(vcpu));
	if (!vcpu->page)
		return;
	WRITE_ONCE(vcpu->page->report.events, ++vcpu->events);
	vcoop_vcpu_pong(vcpu);
	if (READ_ONCE(vcpu->timers.next) != READ_ONCE(vcpu->timers.shown))
		vcoop_deadline_show(vcpu);
	asked = event->kind == VCOOP_IDLE_ENTER && is_asked_for_idle(vcpu);
	if ((notify || asked) && has_lock(event)) {
		/* The end of that interrupt asks for the end of the boost again, and rings. */
		vcpu->owes_ring = asked;
		irq_work_queue(&vcpu->after_locks);
		return;
	}
	if (notify)
		WRITE_ONCE(vcpu->page->report.notified, ++vcpu->notified);
	if (notify || asked || (vcpu->owes_ring && event->kind == VCOOP_IRQ_EXIT))
		vcoop_vcpu_ring();
}

/* The host's question about the clock; both words tell how its own and the guest's differ. */
void vcoop_vcpu_pong(struct vcoop_vcpu *vcpu)
{
	u64 ping = READ_ONCE(vcpu->host->ping);

	if (likely(ping == vcpu->pong))
		return;
	/* The kernel measures it again some seconds after it has booted. */
	if (unlikely(vcoop_window.header->tsc_khz != tsc_khz))
		WRITE_ONCE(vcoop_window.header->tsc_khz, tsc_khz);
	answer(vcpu, ping);
}

/* A timeout for ever is the largest time there is, and a product that does not fit is a divide error. */
#define MOST_NS (1ULL << 58)

u64 vcoop_ns_to_tsc(u64 ns)
{
	return mul_u64_u32_div(min(ns, MOST_NS), tsc_khz, NSEC_PER_MSEC);
}

u64 vcoop_tsc_to_ns(u64 tsc)
{
	return mul_u64_u32_div(tsc, NSEC_PER_MSEC, tsc_khz);
}

static void counted(uint64_t *word)
{
	WRITE_ONCE(*word, *word + 1);
}

/* An urgent task runs that a timer, due then, has woken. */
void vcoop_vcpu_latency(struct vcoop_vcpu *vcpu, u64 due_tsc)
{
	s64 late = rdtsc() - due_tsc;
	u64 ns = late > 0 ? vcoop_tsc_to_ns(late) : 0;
	struct vcoop_guest_report *report;

	if (!vcpu->page)
		return;
	report = &vcpu->page->report;
	vcpu->latencies++;
	vcpu->latency_sum_ns += ns;
	vcpu->latency_max_ns = max(vcpu->latency_max_ns, ns);
	WRITE_ONCE(report->latency_sum_ns, vcpu->latency_sum_ns);
	WRITE_ONCE(report->latency_max_ns, vcpu->latency_max_ns);
	counted(&report->latency[vcoop_latency_bucket(ns)]);
}

void vcoop_latency_due(pid_t pid, u64 tsc)
{
	WRITE_ONCE(due_tasks[pid % DUE_TASKS].tsc, tsc);
	smp_store_release(&due_tasks[pid % DUE_TASKS].pid, pid);
}

/* When the timer was due that has woken the task; 0: none, or it was taken. */
u64 vcoop_latency_take(pid_t pid)
{
	u64 tsc;

	if (smp_load_acquire(&due_tasks[pid % DUE_TASKS].pid) != pid)
		return 0;
	tsc = READ_ONCE(due_tasks[pid % DUE_TASKS].tsc);
	WRITE_ONCE(due_tasks[pid % DUE_TASKS].pid, 0);
	return tsc;
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
	status = vcoop_vcpu_status(vcpu);
	if (vcoop_is_disabled(status))
		return;
	old = READ_ONCE(page->area.remote);
	while (!try_cmpxchg(&page->area.remote, &old,
			    ((old >> VCOOP_REMOTE_COUNT_SHIFT) + 1) << VCOOP_REMOTE_COUNT_SHIFT |
				    task))
		;
	if (status != VCOOP_STATUS_THROTTLED)
		vcoop_vcpu_ring();
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
	vcpu->events = 0;
	vcpu->notified = 0;
	vcpu->latencies = 0;
	vcpu->latency_sum_ns = 0;
	vcpu->latency_max_ns = 0;
	vcoop_deadline_forget(vcpu);
	vcpu->host = vcoop_host_area(cpu);
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
