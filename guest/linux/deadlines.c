// SPDX-License-Identifier: GPL-2.0
/*
 * The next urgent deadline of each CPU: the earliest of the timers that urgent
 * tasks have armed there. The hooks are called with the lock of a timer base
 * held and interrupts off, also for timers of other CPUs.
 *
 * A timer is known from when an urgent task arms it until it is cancelled or has
 * expired. Its callback, or what that returns, may arm it again; so it is known
 * until the end of the interrupt or softirq that it expires in. The address of a
 * timer on a stack is another timer's then. A timer that has passed by the end of
 * a timer interrupt went away unseen, and is forgotten.
 */
#include <linux/preempt.h>
#if __has_include(<linux/hrtimer_bases.h>)
#include <linux/hrtimer_bases.h>
#endif
#include <asm/tsc.h>

#include "vcoop.h"

/*
 * What is later than this when the timer interrupt ends was cancelled unseen, or
 * is on another CPU.
 */
#define STALE_NS NSEC_PER_MSEC

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
	struct vcoop_view view;
	u64 old = timers->shown;

	if (!page || timers->next == old)
		return;
	view = vcoop_vcpu_view(vcpu);
	if (view.status < VCOOP_STATUS_NORMAL || view.status > VCOOP_STATUS_THROTTLED)
		return;
	WRITE_ONCE(timers->shown, timers->next);
	smp_store_release(&page->area.deadline_tsc, timers->next);
	if (!timers->next)
		return;
	WRITE_ONCE(page->report.deadlines, ++timers->published);
	/* The end of a boost is announced anyway, and the host looks at this word then. */
	if ((!old || timers->next < old) && view.status != VCOOP_STATUS_BOOSTED)
		vcoop_ring();
}

static void update(struct vcoop_vcpu *vcpu)
{
	WRITE_ONCE(vcpu->timers.next, earliest(&vcpu->timers));
	show(vcpu);
}

void vcoop_deadline_show(unsigned int cpu)
{
	struct vcoop_vcpu *vcpu = per_cpu_ptr(&vcoop_vcpus, cpu);

	raw_spin_lock(&vcpu->timers.lock);
	show(vcpu);
	raw_spin_unlock(&vcpu->timers.lock);
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
	u16 task = by_task ? vcoop_task_word(current) : 0;
	struct vcoop_timer *entry;

	/* The stopper moves timers away from a CPU that goes offline. */
	by_task &= (task & 0xff) != VCOOP_CLASS_STOP;
	if (!READ_ONCE(timers->used) && !(by_task && vcoop_task_is_urgent(task)))
		return;
	raw_spin_lock(&timers->lock);
	entry = find(timers, timer);
	if (by_task && !vcoop_task_is_urgent(task)) {
		if (entry)
			forget(timers, entry);
	} else if (by_task || entry) {
		if (!entry)
			entry = find_free(timers);
		if (entry) {
			entry->timer = timer;
			entry->soft = timer->is_soft;
			entry->tsc = tsc_of(timer->base, hrtimer_get_expires(timer));
		} else if (vcpu->page) {
			WRITE_ONCE(vcpu->page->report.dropped, ++timers->dropped);
		}
	}
	update(vcpu);
	raw_spin_unlock(&timers->lock);
}

static void disarm(struct vcoop_vcpu *vcpu, const struct hrtimer *timer, bool for_good)
{
	struct vcoop_timer *entry;

	if (!READ_ONCE(vcpu->timers.used))
		return;
	raw_spin_lock(&vcpu->timers.lock);
	entry = find(&vcpu->timers, timer);
	if (entry) {
		entry->tsc = 0;
		if (for_good)
			forget(&vcpu->timers, entry);
		update(vcpu);
	}
	raw_spin_unlock(&vcpu->timers.lock);
}

/* Some kernels say of a timer that expires that it was cancelled. */
void vcoop_timer_cancel(struct hrtimer *timer)
{
	disarm(vcpu_of(timer), timer, in_task());
}

/* The callback is about to run, on this CPU: whom it wakes was due when the timer was. */
void vcoop_timer_expire(struct hrtimer *timer)
{
	struct vcoop_vcpu *vcpu = this_cpu_ptr(&vcoop_vcpus);

	disarm(vcpu, timer, false);
	vcpu->due = hrtimer_get_softexpires(timer);
	vcpu->due_base = timer->base;
}

void vcoop_timer_expired(void)
{
	this_cpu_ptr(&vcoop_vcpus)->due_base = NULL;
}

/* When the timer was due whose callback runs on this CPU; 0: none does. */
u64 vcoop_timer_due(const struct vcoop_vcpu *vcpu)
{
	return vcpu->due_base ? tsc_of(vcpu->due_base, vcpu->due) : 0;
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
	raw_spin_lock(&timers->lock);
	before = rdtsc() - vcoop_ns_to_tsc(STALE_NS);
	while (i < timers->used) {
		struct vcoop_timer *entry = &timers->timers[i];

		if (entry->soft != soft || entry->tsc >= before) {
			i++;
			continue;
		}
		if (entry->tsc && vcpu->page)
			WRITE_ONCE(vcpu->page->report.stale, ++timers->stale);
		forget(timers, entry);
	}
	update(vcpu);
	raw_spin_unlock(&timers->lock);
}

/* Before the page is used, and after. */
void vcoop_deadline_forget(struct vcoop_vcpu *vcpu)
{
	struct vcoop_timers *timers = &vcpu->timers;

	raw_spin_lock(&timers->lock);
	timers->used = 0;
	timers->next = 0;
	timers->shown = 0;
	timers->published = 0;
	timers->stale = 0;
	timers->dropped = 0;
	raw_spin_unlock(&timers->lock);
}
