// SPDX-License-Identifier: GPL-2.0
/*
 * The next urgent deadline of each CPU: the earliest of the timers that urgent
 * tasks have armed there. The hooks are called with the lock of a timer base
 * held and interrupts off, also for timers of other CPUs.
 *
 * A timer is known from when an urgent task arms it until it is cancelled or has
 * expired. Its callback, or what that returns, may arm it again; so it is known
 * until the end of the interrupt or softirq that it expires in. The address of a
 * timer on a stack is another timer's then. A timer that has passed unseen is
 * forgotten.
 */
#include <linux/kallsyms.h>
#include <linux/preempt.h>
#if __has_include(<linux/hrtimer_bases.h>)
#include <linux/hrtimer_bases.h>
#endif

#include "vcoop.h"

/*
 * What is later than this at the end of two timer interrupts was cancelled unseen,
 * or is on another CPU. One is not enough: the vCPU may have lost its CPU since the
 * kernel looked at the clock.
 */
#define STALE_NS NSEC_PER_MSEC

/* More than any host boosts ahead of a deadline. */
#define NEAR_NS (300 * NSEC_PER_USEC)

/* Timers that the scheduler and others arm on a task's back: no urgent task waits for them. */
static const char *const not_of_tasks[] = {
	"hrtick",
	"inactive_task_timer",
	"perf_mux_hrtimer_handler",
	"sched_cfs_period_timer",
	"sched_cfs_slack_timer",
	"sched_rt_period_timer",
	"tick_nohz_handler",
	"tick_sched_timer",
	"watchdog_timer_fn",
};

/* As above, unless a deadline task has armed it: it is the task's next period then. */
#define OF_DEADLINE_TASKS "dl_task_timer"

/* What is known of the callbacks of timers. A name takes some microseconds to find. */
#define KNOWN 8

enum whose { TASKS, DEADLINE_TASKS, NOBODYS };

static DEFINE_PER_CPU(struct {
	struct {
		const void *function;
		enum whose whose;
	} known[KNOWN];
	unsigned int next;
	char name[KSYM_SYMBOL_LEN];
}, callbacks);

static enum whose whose(const void *function)
{
	unsigned int i;
	enum whose is;
	char *name;

	for (i = 0; i < KNOWN; i++)
		if (this_cpu_read(callbacks.known[i].function) == function)
			return this_cpu_read(callbacks.known[i].whose);
	name = this_cpu_ptr(&callbacks)->name;
	sprint_symbol_no_offset(name, (unsigned long)function);
	is = strcmp(name, OF_DEADLINE_TASKS) ? TASKS : DEADLINE_TASKS;
	if (match_string(not_of_tasks, ARRAY_SIZE(not_of_tasks), name) >= 0)
		is = NOBODYS;
	i = this_cpu_inc_return(callbacks.next) % KNOWN;
	this_cpu_write(callbacks.known[i].whose, is);
	this_cpu_write(callbacks.known[i].function, function);
	return is;
}

/* Whether a timer that this task arms is one that it waits for, and it is urgent. */
static bool is_urgent(const struct hrtimer *timer, u16 task)
{
	/* The stopper moves timers away from a CPU that goes offline. */
	if (!vcoop_task_is_urgent(task) || vcoop_task_class(task) == VCOOP_CLASS_STOP)
		return false;
	switch (whose(ACCESS_PRIVATE(timer, function))) {
	case DEADLINE_TASKS:
		return vcoop_task_class(task) == VCOOP_CLASS_DEADLINE;
	case NOBODYS:
		return false;
	default:
		return true;
	}
}

static struct vcoop_vcpu *vcpu_of(const struct hrtimer *timer)
{
	return per_cpu_ptr(&vcoop_vcpus, timer->base->cpu_base->cpu);
}

static struct vcoop_timer *find(struct vcoop_timers *timers, const struct hrtimer *timer)
{
	unsigned int i;

	for (i = 0; i < timers->used; i++)
		if (timers->timers[i].timer == timer)
			return &timers->timers[i];
	return NULL;
}

static struct vcoop_timer *find_free(struct vcoop_timers *timers)
{
	return timers->used < VCOOP_TIMERS ? &timers->timers[timers->used++] : NULL;
}

static void forget(struct vcoop_timers *timers, struct vcoop_timer *entry)
{
	*entry = timers->timers[--timers->used];
}

static u64 earliest(const struct vcoop_timers *timers)
{
	u64 next = 0;
	unsigned int i;

	for (i = 0; i < timers->used; i++)
		if (timers->timers[i].tsc && (!next || timers->timers[i].tsc < next))
			next = timers->timers[i].tsc;
	return next;
}

/* With the lock held. The word has one writer at a time: who has the lock. */
static void show(struct vcoop_vcpu *vcpu)
{
	struct vcoop_timers *timers = &vcpu->timers;
	struct vcoop_guest_page *page = READ_ONCE(vcpu->page);
	u64 status, old = timers->shown;

	if (!page || timers->next == old)
		return;
	status = vcoop_host_status(vcpu);
	if (vcoop_is_disabled(status))
		return;
	WRITE_ONCE(timers->shown, timers->next);
	virt_store_release(&page->area.deadline_tsc, timers->next);
	if (!timers->next)
		return;
	vcoop_count(&page->report.deadlines);
	/* The end of a boost is announced anyway, and the host looks at this word then. */
	if ((!old || timers->next < old) && status != VCOOP_STATUS_BOOSTED)
		vcoop_host_ring();
}

static void update(struct vcoop_vcpu *vcpu)
{
	WRITE_ONCE(vcpu->timers.next, earliest(&vcpu->timers));
	show(vcpu);
}

/* What could not be shown before is shown, on the CPU itself. */
void vcoop_deadline_show(struct vcoop_vcpu *vcpu)
{
	if (READ_ONCE(vcpu->timers.next) == READ_ONCE(vcpu->timers.shown))
		return;
	arch_spin_lock(&vcpu->timers.lock);
	show(vcpu);
	arch_spin_unlock(&vcpu->timers.lock);
}

/*
 * A host boosts shortly before a deadline. An interrupt that comes in between does
 * not end that boost: the deadline's own will.
 */
bool vcoop_deadline_is_near(const struct vcoop_vcpu *vcpu)
{
	u64 next = READ_ONCE(vcpu->timers.next);

	return next && abs((s64)(next - rdtsc())) < (s64)vcoop_ns_to_tsc(NEAR_NS);
}

static u64 tsc_of(const struct hrtimer_clock_base *base, ktime_t expires)
{
	struct hrtimer of_base = { .base = (struct hrtimer_clock_base *)base };
	s64 left = ktime_to_ns(ktime_sub(expires, hrtimer_cb_get_time(&of_base)));
	u64 now = rdtsc();
	u64 tsc = left >= 0 ? now + vcoop_ns_to_tsc(left) : now - vcoop_ns_to_tsc(-left);

	return tsc ?: 1;
}

void vcoop_timer_start(struct hrtimer *timer)
{
	struct vcoop_vcpu *vcpu = vcpu_of(timer);
	struct vcoop_timers *timers = &vcpu->timers;
	bool by_task = in_task();
	bool urgent = by_task && is_urgent(timer, vcoop_task_word(current));
	/* Of another CPU, perhaps, which goes offline meanwhile. */
	struct vcoop_guest_page *page = READ_ONCE(vcpu->page);
	struct vcoop_timer *entry;

	if (!urgent && !READ_ONCE(timers->used))
		return;
	arch_spin_lock(&timers->lock);
	entry = find(timers, timer);
	if (by_task && !urgent) {
		if (entry)
			forget(timers, entry);
	} else if (urgent || entry) {
		if (!entry)
			entry = find_free(timers);
		if (entry) {
			entry->timer = timer;
			entry->soft = timer->is_soft;
			entry->late = false;
			entry->armed = rdtsc();
			entry->tsc = tsc_of(timer->base, hrtimer_get_expires(timer));
		} else if (page) {
			vcoop_count(&page->report.dropped);
		}
	}
	update(vcpu);
	arch_spin_unlock(&timers->lock);
}

/* When the timer was armed; 0: that is not known. */
static u64 disarm(struct vcoop_vcpu *vcpu, const struct hrtimer *timer, bool for_good)
{
	struct vcoop_timer *entry;
	u64 armed = 0;

	if (!READ_ONCE(vcpu->timers.used))
		return 0;
	arch_spin_lock(&vcpu->timers.lock);
	entry = find(&vcpu->timers, timer);
	if (entry) {
		armed = entry->armed;
		entry->tsc = 0;
		if (for_good)
			forget(&vcpu->timers, entry);
		update(vcpu);
	}
	arch_spin_unlock(&vcpu->timers.lock);
	return armed;
}

/* Some kernels say of a timer that expires that it was cancelled. */
void vcoop_timer_cancel(struct hrtimer *timer)
{
	disarm(vcpu_of(timer), timer, in_task());
}

/*
 * The callback is about to run, on this CPU: whom it wakes was due when the timer was. In a softirq it can
 * be interrupted, and with PREEMPT_RT be preempted: whom the interrupt or another task wakes was not.
 */
void vcoop_timer_expire(struct hrtimer *timer)
{
	struct vcoop_vcpu *vcpu = this_cpu_ptr(&vcoop_vcpus);
	struct vcoop_due *due = &vcpu->due[!in_hardirq()];

	due->armed = disarm(vcpu, timer, false);
	due->due = hrtimer_get_softexpires(timer);
	due->function = ACCESS_PRIVATE(timer, function);
	due->task = current;
	due->base = timer->base;
}

void vcoop_timer_expired(struct hrtimer *timer)
{
	this_cpu_ptr(&vcoop_vcpus)->due[!in_hardirq()].base = NULL;
}

/*
 * When the timer was due whose callback runs here; 0: none does. One that was armed for a time that had
 * passed is due when it is armed. That time may be before the TSC began to count, and then is no smaller number.
 * The tick and the watchdog wake threads of the kernel, which are not late for anything.
 */
u64 vcoop_timer_due(const struct vcoop_vcpu *vcpu)
{
	const struct vcoop_due *timer = &vcpu->due[!in_hardirq()];
	u64 due;

	if (!timer->base || timer->task != current || whose(timer->function) == NOBODYS)
		return 0;
	due = tsc_of(timer->base, timer->due);
	return (s64)(due - timer->armed) > 0 ? due : timer->armed;
}

/*
 * At the end of a timer interrupt, or of the softirq of timers: all that were due have expired, and
 * those that are to be armed again were.
 */
void vcoop_deadline_purge(struct vcoop_vcpu *vcpu, bool soft)
{
	struct vcoop_timers *timers = &vcpu->timers;
	unsigned int i = 0;
	u64 before;

	if (!READ_ONCE(timers->used))
		return;
	arch_spin_lock(&timers->lock);
	before = rdtsc() - vcoop_ns_to_tsc(STALE_NS);
	while (i < timers->used) {
		struct vcoop_timer *entry = &timers->timers[i];

		if (entry->soft != soft || entry->tsc >= before) {
			i++;
			continue;
		}
		if (entry->tsc && !entry->late) {
			entry->late = true;
			i++;
			continue;
		}
		if (entry->tsc && vcpu->page)
			vcoop_count(&vcpu->page->report.stale);
		forget(timers, entry);
	}
	update(vcpu);
	arch_spin_unlock(&timers->lock);
}

/* Before the page is used, and after. */
void vcoop_deadline_forget(struct vcoop_vcpu *vcpu)
{
	struct vcoop_timers *timers = &vcpu->timers;

	arch_spin_lock(&timers->lock);
	timers->used = 0;
	timers->next = 0;
	timers->shown = 0;
	arch_spin_unlock(&timers->lock);
}
