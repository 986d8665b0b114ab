/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The policy `wake-boost`, for where Rust does not go: the same events give the same state as in
 * crates/policy (wake_boost.rs, control.rs, meter.rs, budget.rs), which say why it is as it is. A test drives both with
 * the same events. What is left out is what a scheduler of its own does not need: the guest's words, means that
 * are refused, accounts of time to pay back.
 *
 * Times are in nanoseconds. Nothing here calls anything, so that it may be used under a lock of BPF.
 */
#ifndef VCOOP_WAKE_BOOST_H
#define VCOOP_WAKE_BOOST_H

#include <linux/types.h>

#define RULE static inline __attribute__((always_inline))

/*
 * The kernel's verifier follows every path with what is known on it. After this only what memory holds is known, so that
 * paths which have come to the same point are one again.
 */
#define JOIN __asm__ __volatile__("" ::: "memory")

/* No time. */
#define NEVER (~0ULL)

#define PER_MILLION 1000000

/*
 * The longest time that is taken at once, 73 minutes, so that a balance in millionths of a nanosecond fits into 64 bits.
 * A vCPU that nothing happened to for longer gains as much as in this time: its burst, for any budget of use. A debt that is
 * larger counts as this.
 */
#define LONGEST_STEP (1ULL << 42)

/* Largest burst, 18 minutes, for the same reason. */
#define MOST_BURST (1ULL << 40)

/* As in meter.rs and control.rs. */
#define MIN_BOOST 20000
#define LEASE_SHARE 8
#define FREE_STRIKES 4
#define PENALTY 20000000ULL
#define MOST_STEPS 5
#define LOST_TIMER 1000000

enum boost_status { DISABLED, NORMAL, BOOSTED, THROTTLED };
enum boost_denial { GRANTED, BY_VCPU, BY_VM };
enum boost_event { ATTACHED, LEFT, HALTED, WOKEN, INJECTED, TIMER };

/* A token bucket. The balance is in millionths of a nanosecond; below zero it is debt. */
struct bucket {
	__u64 burst;
	__u64 refill_ppm;
	__s64 balance;
	__u64 at;
};

struct wake_boost {
	/* What it is told in the beginning. */
	__u64 run;
	__u64 on_injection;
	struct bucket bucket;
	/* Tokens taken from the VM's bucket and not used yet. */
	__u64 lease;
	/* Charged up to here, where `charging`. */
	__u64 since;
	__u64 charging;
	__u64 status;
	__u64 halted;
	/* Why it is throttled. */
	__u64 latched;
	__u64 strikes;
	__u64 held_until;
	/* When it wants TIMER, and when the current run ends; or NEVER. */
	__u64 timer;
	__u64 run_end;
	/* Counters. */
	__u64 boosted_ns;
	__u64 boosts;
	__u64 throttles;
	__u64 denied;
};

/* What a driver does about its timer: `at`, unless NEVER, replaces the one it has. */
struct timer_change {
	__u64 at;
	__u64 cancel;
};

RULE __u64 lesser(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

RULE __u64 greater(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

RULE __u64 beyond(__u64 a, __u64 b)
{
	return a > b ? a - b : 0;
}

/* Saturating, as no time is larger than NEVER. */
RULE __u64 plus(__u64 a, __u64 b)
{
	return a + b < a ? NEVER : a + b;
}

RULE struct bucket full_bucket(__u64 burst, __u64 refill_ppm, __u64 now)
{
	struct bucket b = { lesser(burst, MOST_BURST), lesser(refill_ppm, PER_MILLION), 0, now };

	b.balance = (__s64)(b.burst * PER_MILLION);
	return b;
}

RULE void refill(struct bucket *b, __u64 now)
{
	__u64 elapsed = lesser(beyond(now, b->at), LONGEST_STEP);
	__s64 full = (__s64)(b->burst * PER_MILLION);

	b->at = greater(b->at, now);
	b->balance += (__s64)(elapsed * b->refill_ppm);
	if (b->balance > full)
		b->balance = full;
}

RULE void charge(struct bucket *b, __u64 ns)
{
	__s64 floor = -(__s64)(LONGEST_STEP * PER_MILLION);

	b->balance -= (__s64)(lesser(ns, LONGEST_STEP) * PER_MILLION);
	if (b->balance < floor)
		b->balance = floor;
}

RULE int has(const struct bucket *b, __u64 ns)
{
	return b->balance >= (__s64)(lesser(ns, LONGEST_STEP) * PER_MILLION);
}

RULE __u64 level(const struct bucket *b)
{
	return b->balance > 0 ? (__u64)b->balance / PER_MILLION : 0;
}

RULE void give_back(struct bucket *b, __u64 ns)
{
	__s64 full = (__s64)(b->burst * PER_MILLION);

	b->balance += (__s64)(lesser(ns, MOST_BURST) * PER_MILLION);
	if (b->balance > full)
		b->balance = full;
}

RULE __u64 take(struct bucket *b, __u64 ns)
{
	__u64 taken = has(b, ns) ? ns : level(b);

	charge(b, taken);
	return taken;
}

RULE __u64 time_to_empty(const struct bucket *b)
{
	if (b->balance <= 0)
		return 0;
	if (b->refill_ppm >= PER_MILLION)
		return NEVER;
	return (__u64)b->balance / (PER_MILLION - b->refill_ppm);
}

RULE __u64 time_until(const struct bucket *b, __u64 level)
{
	__s64 missing = (__s64)(lesser(level, MOST_BURST) * PER_MILLION) - b->balance;

	if (missing <= 0)
		return 0;
	if (!b->refill_ppm || level > b->burst)
		return NEVER;
	return ((__u64)missing + b->refill_ppm - 1) / b->refill_ppm;
}

RULE __u64 least(const struct bucket *b)
{
	return greater(lesser(MIN_BOOST, b->burst / 4), 1);
}

RULE void settle(struct wake_boost *v, struct bucket *vm, __u64 now)
{
	if (v->charging) {
		__u64 ran = beyond(now, v->since);

		v->since = greater(v->since, now);
		v->boosted_ns += ran;
		charge(&v->bucket, ran);
		charge(vm, beyond(ran, v->lease));
		v->lease = beyond(v->lease, ran);
	}
	JOIN;
	refill(&v->bucket, now);
	JOIN;
	refill(vm, now);
	JOIN;
}

RULE __u64 can_start(const struct wake_boost *v, const struct bucket *vm)
{
	if (!has(&v->bucket, least(&v->bucket)))
		return BY_VCPU;
	return has(vm, least(vm)) ? GRANTED : BY_VM;
}

RULE void extend(struct wake_boost *v, struct bucket *vm)
{
	__u64 share = greater(level(vm) / LEASE_SHARE, least(vm));

	v->lease += take(vm, lesser(share, time_to_empty(&v->bucket)));
	JOIN;
}

RULE __u64 start_charging(struct wake_boost *v, struct bucket *vm, __u64 now)
{
	__u64 denial;

	if (v->charging)
		return GRANTED;
	denial = can_start(v, vm);
	if (denial)
		return denial;
	extend(v, vm);
	v->since = now;
	v->charging = 1;
	return GRANTED;
}

RULE void stop_charging(struct wake_boost *v, struct bucket *vm)
{
	v->charging = 0;
	give_back(vm, v->lease);
	v->lease = 0;
	JOIN;
}

RULE __u64 renew(struct wake_boost *v, struct bucket *vm)
{
	if (!time_to_empty(&v->bucket))
		return BY_VCPU;
	if (!v->lease) {
		if (!has(vm, least(vm)))
			return BY_VM;
		extend(v, vm);
	}
	return GRANTED;
}

RULE __u64 half_full(const struct bucket *b)
{
	return time_until(b, greater(b->burst / 2, least(b)));
}

/* How long until a throttling is over. */
RULE __u64 recovery(const struct wake_boost *v, const struct bucket *vm, __u64 now)
{
	__u64 buckets = greater(half_full(&v->bucket), half_full(vm));

	return greater(buckets, beyond(v->held_until, now));
}

RULE void restore(struct wake_boost *v, struct bucket *vm, __u64 status)
{
	if (v->status == BOOSTED)
		stop_charging(v, vm);
	v->status = status;
}

RULE void throttle(struct wake_boost *v, struct bucket *vm, __u64 denial)
{
	v->throttles++;
	v->latched = denial;
	restore(v, vm, THROTTLED);
	v->denied++;
}

RULE __u64 halvings(const struct bucket *b)
{
	__u64 left = level(b);

	return (left < b->burst / 2) + (left < b->burst / 4) + (left < b->burst / 8);
}

/* A run begins. It is shorter as the budget runs out. */
RULE void start_run(struct wake_boost *v, const struct bucket *vm, __u64 now)
{
	v->run_end = v->run >> halvings(&v->bucket);
	JOIN;
	v->run_end = plus(now, lesser(v->run_end, v->run >> halvings(vm)));
}

/* A reason to boost. Whether it is boosted by this call. */
RULE int boost(struct wake_boost *v, struct bucket *vm, __u64 now)
{
	__u64 denial;

	if (v->status == THROTTLED)
		v->denied++;
	if (v->status != NORMAL)
		return 0;
	denial = v->halted ? can_start(v, vm) : start_charging(v, vm, now);
	if (denial) {
		throttle(v, vm, denial);
		return 0;
	}
	v->boosts++;
	v->status = BOOSTED;
	return 1;
}

RULE void on_timer(struct wake_boost *v, struct bucket *vm, __u64 now)
{
	__u64 denial;

	if (v->run_end != NEVER && v->run_end <= now && v->status == BOOSTED) {
		v->strikes = 0;
		restore(v, vm, NORMAL);
	}
	JOIN;
	if (v->timer <= now)
		v->timer = NEVER;
	JOIN;
	if (v->status == BOOSTED && !v->halted) {
		denial = renew(v, vm);
		if (!denial)
			return;
		if (v->strikes >= FREE_STRIKES)
			v->held_until = plus(now, PENALTY << 2 * lesser(v->strikes - FREE_STRIKES, MOST_STEPS));
		v->strikes++;
		throttle(v, vm, denial);
	} else if (v->status == THROTTLED && !recovery(v, vm, now)) {
		v->latched = GRANTED;
		v->status = NORMAL;
	}
}

/* What happened at a time that never goes back for one VM, and what to do about the timer. */
RULE struct timer_change on_event(struct wake_boost *v, struct bucket *vm, __u64 now, enum boost_event event)
{
	struct timer_change change = { NEVER, 0 };
	__u64 own = NEVER, at, denial;
	int boosts, lost;

	settle(v, vm, now);
	switch (event) {
	case ATTACHED:
		v->halted = 0;
		if (v->status != DISABLED)
			break;
		if (!recovery(v, vm, now))
			v->latched = GRANTED;
		v->status = v->latched ? THROTTLED : NORMAL;
		break;
	case LEFT:
		v->halted = 0;
		if (v->status == DISABLED)
			break;
		restore(v, vm, DISABLED);
		change.cancel = v->timer != NEVER;
		v->timer = NEVER;
		break;
	case HALTED:
		v->halted = 1;
		stop_charging(v, vm);
		if (v->status != THROTTLED) {
			change.cancel = v->timer != NEVER;
			v->timer = NEVER;
		}
		v->run_end = NEVER;
		break;
	case WOKEN:
		v->halted = 0;
		if (v->status != BOOSTED)
			break;
		denial = start_charging(v, vm, now);
		if (denial)
			throttle(v, vm, denial);
		break;
	case INJECTED:
	case TIMER:
		break;
	}
	JOIN;
	boosts = (event == HALTED || (event == INJECTED && v->on_injection)) && boost(v, vm, now);
	if (event == WOKEN || (event == INJECTED && boosts))
		start_run(v, vm, now);
	JOIN;
	/* A timer that is so late is lost, and any event does its work. */
	lost = event != TIMER && v->timer != NEVER && plus(v->timer, LOST_TIMER) <= now;
	if (lost) {
		v->timer = NEVER;
		change.cancel = 1;
	}
	JOIN;
	if (lost || event == TIMER)
		on_timer(v, vm, now);
	JOIN;
	if (v->status != BOOSTED)
		v->run_end = NEVER;
	JOIN;
	if (v->status == BOOSTED && !v->halted)
		own = lesser(time_to_empty(&v->bucket), v->lease);
	else if (v->status == THROTTLED)
		own = greater(recovery(v, vm, now), 1);
	at = lesser(own == NEVER ? NEVER : plus(now, own), v->run_end);
	if (at != NEVER && (v->timer == NEVER || at < v->timer)) {
		v->timer = at;
		change.at = at;
		change.cancel = 0;
	}
	return change;
}

#endif
