// SPDX-License-Identifier: GPL-2.0
/* How late urgent tasks run that a timer has woken. */
#include <asm/barrier.h>

#include "vcoop.h"

/*
 * Tasks that a timer has woken, and when it was due. Tasks that share an entry
 * overwrite each other's: their latencies are not counted then.
 */
static struct due_task {
	pid_t pid;
	u64 tsc;
} due_tasks[256];

static struct due_task *entry_of(const struct task_struct *task)
{
	return &due_tasks[task->pid % ARRAY_SIZE(due_tasks)];
}

void vcoop_latency_due(const struct task_struct *task, u64 tsc)
{
	struct due_task *entry = entry_of(task);

	WRITE_ONCE(entry->tsc, tsc);
	smp_store_release(&entry->pid, task->pid);
}

/* When the timer was due that has woken the task; 0: none, or it was taken. */
static u64 take(const struct task_struct *task)
{
	struct due_task *entry = entry_of(task);
	u64 tsc;

	if (smp_load_acquire(&entry->pid) != task->pid)
		return 0;
	tsc = READ_ONCE(entry->tsc);
	WRITE_ONCE(entry->pid, 0);
	return tsc;
}

/* An urgent task runs: if a timer has woken it, the latency is reported. */
void vcoop_latency_ran(const struct vcoop_vcpu *vcpu, const struct task_struct *task)
{
	struct vcoop_guest_report *report;
	u64 ns, due = take(task);
	s64 late;

	if (!due || !vcpu->page)
		return;
	report = &vcpu->page->report;
	late = rdtsc() - due;
	ns = late > 0 ? vcoop_tsc_to_ns(late) : 0;
	WRITE_ONCE(report->latency_sum_ns, report->latency_sum_ns + ns);
	WRITE_ONCE(report->latency_max_ns, max(report->latency_max_ns, ns));
	vcoop_count(&report->latency[vcoop_latency_bucket(ns)]);
}

/* What woke a task before it slept is no cause of its next run. */
void vcoop_latency_forget(const struct task_struct *task)
{
	take(task);
}
