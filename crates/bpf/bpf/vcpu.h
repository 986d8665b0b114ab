/* SPDX-License-Identifier: GPL-2.0 */
/* Admitted vCPUs: their policies, what their guests say, and their timers. */
#ifndef VCOOP_VCPU_H
#define VCOOP_VCPU_H

#include "fair.h"

/* BPF_F_TIMER_ABS (since 6.2), and constants of headers that conflict with these. */
#define TIMER_ABSOLUTE 1
#define CLOCK_MONOTONIC 1
#define EBUSY 16

#define MOST_VCPUS 1024
#define MOST_VMS 256

/*
 * The page of a vCPU, as in layout.rs of the ABI: where the guest's words and the host's begin in their pages, and those
 * that are read and written at once.
 */
#define PAGE_BYTES 4096
#define GUEST_WORDS 64
#define HOST_WORDS 64
struct guest_words { u64 intent, cs, request, ack, deadline_tsc; };
struct host_words { u64 status, ticket, budget_left; };

/* A deadline that is 2^40 ticks or more away, some minutes, is ignored. */
#define MOST_TICKS 40

/* An admitted vCPU. User space reads the first part. */
struct vcpu {
	/* Deadlines that its guest had announced, for which it was boosted. */
	u64 deadlines;
	struct policy policy;
	/* Its place in the map. */
	u64 place;
	/* Its thread; 0: none. */
	u64 tid;
	/* Its VM. */
	u64 vm;
	/* The CPU that it runs on, or ran on last. */
	u64 cpu;
	u64 runs;
	/* Since when it has waited for a CPU. */
	u64 waits;
	/* Virtual time that it owes. */
	u64 debt;
	/* The event of an interrupt that it got while it ran, unless it has since entered the guest with all of them; or 0. */
	u64 untaken;
	/* Address in its VMM of its guest's page, which the host's follows; 0: none. */
	u64 page;
	/* Last words from its guest, and last words to it. */
	struct words words;
	struct host_words shown;
	/* The guest's clock: its TSC at a time, and ticks in a millisecond; 0: not known. */
	u64 left_at;
	u64 clock_ns;
	u64 clock_tsc;
	u64 khz;
	/* What the guest announced last, and the last one for which it was boosted. */
	u64 deadline_tsc;
	u64 served_tsc;
	/* How early it is boosted for a deadline, and when for that of one that does not run; or NEVER. */
	u64 lead;
	u64 due;
	/* The words are to be looked at again. */
	u64 rechecks;
	/* When its timer fires; NEVER: it is not set. */
	u64 rings;
	/* Something has happened to it since that last rang. */
	u64 told;
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_VCPUS);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

/* State that the vCPUs of a VM share. The lock protects their state, too. */
struct vm {
	struct bpf_spin_lock lock;
	struct bucket bucket;
	/* The policy's time never goes back. */
	u64 called;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_VMS);
	__type(key, u32);
	__type(value, struct vm);
} vms SEC(".maps");

/* Place in `vcpus`, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_VCPUS);
	__type(key, u32);
	__type(value, u32);
} threads SEC(".maps");

static struct vcpu *vcpu_of(u32 tid)
{
	u32 *place = bpf_map_lookup_elem(&threads, &tid);

	return place ? bpf_map_lookup_elem(&vcpus, place) : 0;
}

static u32 current_tid(void)
{
	return bpf_get_current_pid_tgid();
}

static struct vcpu *current_vcpu(void)
{
	return vcpu_of(current_tid());
}

static bool is_boosted(const struct vcpu *v)
{
	return v && v->policy.status == BOOSTED;
}

/*
 * Reads the words of the guest of the current thread; zero if they cannot be read. If the VMM has something else at that
 * address, only its own VM is affected.
 */
static void listen(struct vcpu *v)
{
	struct guest_words words = {};

	if (!v->page || current_tid() != v->tid)
		return;
	if (bpf_probe_read_user(&words, sizeof(words), (void *)(v->page + GUEST_WORDS)))
		__builtin_memset(&words, 0, sizeof(words));
	v->words = (struct words){ words.intent, words.cs, words.request, words.ack };
	v->deadline_tsc = words.deadline_tsc;
}

/* Writes the host's words for the guest of the current thread, if they have changed. */
static void show(struct vcpu *v)
{
	struct host_words words = { v->policy.status, v->policy.ticket, level(&v->policy.bucket) };

	if (!host.writes)
		return;
	if (v->shown.status == words.status && v->shown.ticket == words.ticket)
		return;
	if (!bpf_probe_write_user((void *)(v->page + PAGE_BYTES + HOST_WORDS), &words, sizeof(words)))
		v->shown = words;
}

/* When the guest's deadline becomes a reason for a boost; NEVER: there is no such deadline. */
static u64 deadline(const struct vcpu *v, u64 now)
{
	u64 ahead = beyond(v->deadline_tsc, v->clock_tsc), behind = beyond(v->clock_tsc, v->deadline_tsc), at;

	if (!v->page || !v->deadline_tsc || !v->khz || (ahead | behind) >> MOST_TICKS)
		return NEVER;
	at = v->clock_ns + ahead * PER_MILLION / v->khz - behind * PER_MILLION / v->khz;
	return boost_from(at, v->deadline_tsc == v->served_tsc, now, budget_left(&v->policy, now), v->lead);
}

/*
 * The policy of a place is told. Whether the vCPU is boosted then. Not static, and of numbers only: so the kernel
 * verifies the rules once, and not anew for each call.
 *
 * A timer is started where it would ring too late only. With interrupts off, as in the scheduler's calls, the kernel
 * cannot start one at once: that takes memory and an interrupt of its own. In the timer's own call it is cheap.
 */
__attribute__((noinline)) int tell(u32 place, u32 event)
{
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &place);
	u64 now = bpf_ktime_get_ns();
	struct vm *vm;
	bool starts;
	u32 key;
	u64 at;

	if (!v)
		return 0;
	key = v->vm;
	vm = bpf_map_lookup_elem(&vms, &key);
	if (!vm)
		return 0;
	bpf_spin_lock(&vm->lock);
	vm->called = greater(vm->called, now);
	/* Or the verifier follows all rules twice: for `now`, and for what was there. */
	JOIN;
	on_event(&v->policy, &vm->bucket, vm->called, event, &v->words);
	v->rechecks = event == TIMER && v->policy.step.rechecks;
	/* One that sleeps boosted has what it needs. */
	at = lesser(v->policy.timer, v->policy.halted && is_boosted(v) ? NEVER : v->due);
	if (event == TIMER) {
		v->rings = NEVER;
		/* Who is busy will want it again. `dynamic` itself leaves its timer as it is. */
		if (v->told && !v->policy.rules.is_dynamic)
			at = lesser(at, plus(vm->called, v->policy.rules.run));
		v->told = 0;
	} else {
		v->told = 1;
	}
	/* A timer that is long overdue has been lost. */
	starts = at < v->rings || plus(v->rings, LOST_TIMER) < now;
	if (starts)
		v->rings = at;
	bpf_spin_unlock(&vm->lock);
	/* If it cannot be started, the next event tries again. */
	if (starts && at != NEVER && bpf_timer_start(&v->timer, at, TIMER_ABSOLUTE))
		v->rings = NEVER;
	return is_boosted(v);
}

/*
 * A vCPU has got a CPU that it may have waited for, as behind another one that is boosted: its boost has kept nobody from a CPU
 * meanwhile, and is not charged. What was charged in the wait stays so.
 */
static void spare_wait(struct vcpu *v, u64 now)
{
	u32 key = v->vm;
	struct vm *vm = bpf_map_lookup_elem(&vms, &key);

	if (!vm || !v->waits)
		return;
	bpf_spin_lock(&vm->lock);
	if (v->policy.charging)
		v->policy.since += beyond(now, greater(v->policy.since, v->waits));
	bpf_spin_unlock(&vm->lock);
	v->waits = 0;
}

/*
 * For a vCPU that runs or waits for a CPU. The timer of a boosted one may not have been started, or be late: what was due is
 * done where its boost would matter. One that woke up while it was admitted as asleep has told nobody, and would be boosted
 * without a charge until it sleeps again.
 */
static void do_what_is_due(struct vcpu *v)
{
	if (v->policy.halted)
		tell(v->place, WOKEN);
	if (is_boosted(v) && v->policy.timer <= bpf_ktime_get_ns())
		tell(v->place, TIMER);
}

/* A reason to boost a vCPU that may wait for a CPU: if it is boosted, it is fetched. Returns whether it is boosted. */
static bool call(struct vcpu *v, u32 event)
{
	bool was = is_boosted(v);
	struct cpu *state = cpu_state(v->cpu);

	if (!tell(v->place, event))
		return 0;
	if (!was && !v->runs && !v->policy.halted && state) {
		state->fetches = 1;
		scx_bpf_kick_cpu(v->cpu, SCX_KICK_PREEMPT);
	}
	return 1;
}

/*
 * The guest's deadline is near: that is an interrupt to its policy. It is one again if something else has ended the boost
 * that was given for it.
 */
static void serve(struct vcpu *v, bool waits)
{
	bool again = v->served_tsc == v->deadline_tsc;

	v->served_tsc = v->deadline_tsc;
	if (again && is_boosted(v))
		return;
	if (waits ? call(v, INJECTED) : tell(v->place, INJECTED))
		v->deadlines += !again;
}

/*
 * A vCPU loses its CPU, is about to, or sleeps: its guest may have become busy with something urgent since it entered,
 * have a deadline that is near, or not have taken an interrupt. Whether it is boosted.
 */
static bool look_at_guest(struct vcpu *v, u32 event)
{
	u64 now = bpf_ktime_get_ns(), from;

	listen(v);
	from = deadline(v, now);
	v->due = from > now && !v->runs ? from : NEVER;
	tell(v->place, event);
	if (from <= now && !(v->policy.halted && is_boosted(v)))
		serve(v, 0);
	return is_boosted(v);
}

/* The boost of a running vCPU may have ended: checks whether another thread should run now. */
static void yields(struct vcpu *v)
{
	struct cpu *state = cpu_state(v->cpu);

	if (!state)
		return;
	state->boosted = 0;
	if (v->rechecks || scx_bpf_dsq_nr_queued(queue(v->cpu)) > 0)
		scx_bpf_kick_cpu(v->cpu, SCX_KICK_PREEMPT);
}

/* The timer of a vCPU: a run, a budget or a throttling ends, or the guest's deadline is near. */
static int timer_rings(void *map, u32 *key, struct vcpu *v)
{
	bool was = is_boosted(v), boosted;

	if (!v->runs && v->due <= bpf_ktime_get_ns()) {
		v->due = NEVER;
		if (!(v->policy.halted && was))
			serve(v, 1);
	}
	boosted = tell(v->place, TIMER);
	/* It preempted: what it last said is all that it has to say. Else it is made to exit, and looked at. */
	if (v->rechecks && !v->runs)
		tell(v->place, RECHECK);
	else if (v->runs && was && (v->rechecks || !boosted))
		yields(v);
	return 0;
}

#endif
