/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The policies `wake-boost` and `dynamic` in C, for BPF: the same events give the same state as in crates/policy
 * (wake_boost.rs, dynamic.rs, deadline.rs, control.rs, meter.rs, stretch.rs, budget.rs), which give the reasons. A test
 * drives both with the same events. Left out is what a scheduler does not need: refused means, accounts of time to
 * pay back, and words of a vCPU that may be running.
 *
 * Times are in nanoseconds. Nothing here calls a helper, so that it may be used under a BPF spin lock.
 */
#ifndef VCOOP_POLICY_H
#define VCOOP_POLICY_H

#include <linux/types.h>

#define RULE static inline __attribute__((always_inline))

/*
 * The kernel's verifier follows every path with the register values known on it, in each program that uses the rules. After
 * this only values in memory are known, so that paths which have come to the same point merge.
 */
#define JOIN __asm__ __volatile__("" ::: "memory")

/* No time. */
#define NEVER (~0ULL)

#define PER_MILLION 1000000

/*
 * The longest time that is taken at once, 73 minutes, so that a balance in millionths of a nanosecond fits into 64 bits.
 * A vCPU without an event for longer gains as much as in this time: its burst, for any useful budget. A larger debt
 * counts as this.
 */
#define LONGEST_STEP (1ULL << 42)

/* Largest burst, 18 minutes, for the same reason. */
#define MOST_BURST (1ULL << 40)

/* As in meter.rs, stretch.rs, control.rs and deadline.rs. */
#define MIN_BOOST 20000
#define LEASE_SHARE 8
#define EXCESS_PPM 5000
#define FREE_STRIKES 4
#define PENALTY 20000000ULL
#define MOST_STEPS 5
#define LOST_TIMER 1000000
#define STALE_DEADLINE 3000000
#define SERVED_DEADLINE 500000
#define DEADLINE_RESERVE 200000

enum boost_status { DISABLED, NORMAL, BOOSTED, THROTTLED };
enum boost_denial { GRANTED, BY_VCPU, BY_VM, BY_LONGEST };
/* Events of a vCPU. EXIT and later ones are for `dynamic` only. */
enum boost_event { ATTACHED, LEFT, HALTED, WOKEN, INJECTED, TIMER, EXIT, RECHECK, REGISTERED, UNREGISTERED, ASKED };
/* Result of the evaluation of a guest's words. */
enum boost_need { NOTHING, LONG_SECTION, SECTION, URGENT };

/* A token bucket. The balance is in millionths of a nanosecond; below zero it is debt. */
struct bucket {
	__u64 burst;
	__u64 refill_ppm;
	__s64 balance;
	__u64 at;
};

/* The words of a guest, each read once. They may have any value. */
struct words { __u64 intent, cs, request, ack; };

/* Parameters of a policy. `wake-boost` boosts across idle, and reads no guest's words. */
struct rules {
	__u64 is_dynamic;
	/* `wake-boost`: how long a run is. */
	__u64 run;
	__u64 on_injection;
	/* For an IPI of another vCPU of its VM, also where it is not boosted for other interrupts. */
	__u64 on_asking;
	__u64 on_request;
	__u64 across_idle;
	__u64 max_preempt_off;
	/* Longest boost in one piece; 0: as the budget allows. */
	__u64 longest;
};

/* Intermediate results of an event. */
struct step {
	__u64 event;
	/* What the guest's words amount to. */
	__u64 need;
	/* Reason for which it is not boosted. */
	__u64 denial;
	/* A boost begins; in the end, by an interrupt. */
	__u64 boosts;
	/* The policy's timer has not fired in time. */
	__u64 lost;
	/* The driver has to evaluate the words again. */
	__u64 rechecks;
};

struct policy {
	/* Results; first, because user space reads them. */
	__u64 status;
	__u64 boosted_ns;
	__u64 boosts;
	__u64 throttles;
	__u64 denied;
	__u64 too_long;
	__u64 by_vm;
	struct bucket bucket;
	struct rules rules;
	/* Tokens taken from the VM's bucket and not used yet. */
	__u64 lease;
	/* If `charging`: charged up to this time. */
	__u64 since;
	__u64 charging;
	/* Length of the boost in one piece, when it ended, and what may be used beyond `longest`. */
	__u64 used;
	__u64 ended;
	struct bucket excess;
	__u64 halted;
	/* Why it is throttled. */
	__u64 latched;
	__u64 strikes;
	__u64 held_until;
	/* When it wants TIMER, and when the current run ends; or NEVER. */
	__u64 timer;
	__u64 run_end;
	/* The vCPU has a thread; its guest takes part. */
	__u64 attached;
	__u64 registered;
	/* The last interrupt that was a reason, and the last one that the guest has acknowledged. */
	__u64 ticket;
	__u64 acked;
	/* The guest's section with preemption off: its number, and when it was first seen. */
	__u64 in_section;
	__u64 section;
	__u64 section_since;
	/* When the section that is the only reason of the boost becomes too long; or NEVER. */
	__u64 section_end;
	/* Woken while boosted, and not seen outside its idle loop. */
	__u64 waking;
	/* The words were ones that an honest guest writes. */
	__u64 canonical;
	/* Of the last event. In memory, for JOIN. */
	struct step step;
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

/* The level of the vCPU's bucket at a time, as if settled. */
RULE __u64 budget_left(const struct policy *v, __u64 now)
{
	struct bucket b = v->bucket;

	if (v->charging)
		charge(&b, beyond(now, v->since));
	refill(&b, now);
	return level(&b);
}

/* From when on a vCPU is boosted for its guest's deadline `at`; NEVER: not at all any more. */
RULE __u64 boost_from(__u64 at, __u64 served, __u64 now, __u64 left, __u64 lead)
{
	if (plus(at, served ? SERVED_DEADLINE : STALE_DEADLINE) < now)
		return NEVER;
	return beyond(at, left < plus(lead, DEADLINE_RESERVE) ? 0 : lead);
}

RULE void charge_stretch(struct policy *v, __u64 ran, __u64 now)
{
	__u64 fits = lesser(ran, beyond(v->rules.longest, v->used));

	if (!v->rules.longest)
		return;
	v->used += fits;
	JOIN;
	charge(&v->excess, ran - fits);
	refill(&v->excess, now);
}

/* How long a boost that begins now, or goes on, can last. */
RULE __u64 left_at_once(const struct policy *v)
{
	return v->rules.longest ? plus(beyond(v->rules.longest, v->used), level(&v->excess)) : NEVER;
}

RULE void begin_stretch(struct policy *v, __u64 now)
{
	if (!v->rules.longest)
		return;
	v->used = beyond(v->used, beyond(now, v->ended));
	v->ended = now;
	refill(&v->excess, now);
	JOIN;
}

RULE void settle(struct policy *v, struct bucket *vm, __u64 now)
{
	if (v->charging) {
		__u64 ran = beyond(now, v->since);

		v->since = greater(v->since, now);
		v->boosted_ns += ran;
		charge(&v->bucket, ran);
		charge(vm, beyond(ran, v->lease));
		v->lease = beyond(v->lease, ran);
		charge_stretch(v, ran, now);
	}
	JOIN;
	refill(&v->bucket, now);
	JOIN;
	refill(vm, now);
	JOIN;
}

RULE __u64 can_start(struct policy *v, const struct bucket *vm, __u64 now)
{
	if (!has(&v->bucket, least(&v->bucket)))
		return BY_VCPU;
	if (!has(vm, least(vm)))
		return BY_VM;
	begin_stretch(v, now);
	return left_at_once(v) < least(&v->bucket) ? BY_LONGEST : GRANTED;
}

RULE void extend(struct policy *v, struct bucket *vm)
{
	__u64 share = greater(level(vm) / LEASE_SHARE, least(vm));

	v->lease += take(vm, lesser(share, time_to_empty(&v->bucket)));
	JOIN;
}

RULE void start_charging(struct policy *v, struct bucket *vm, __u64 now)
{
	extend(v, vm);
	v->since = now;
	v->charging = 1;
}

RULE void stop_charging(struct policy *v, struct bucket *vm)
{
	if (v->charging)
		v->ended = v->since;
	v->charging = 0;
	give_back(vm, v->lease);
	v->lease = 0;
	JOIN;
}

RULE __u64 renew(struct policy *v, struct bucket *vm)
{
	if (!time_to_empty(&v->bucket))
		return BY_VCPU;
	if (left_at_once(v) < least(&v->bucket))
		return BY_LONGEST;
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
RULE __u64 recovery(const struct policy *v, const struct bucket *vm, __u64 now)
{
	__u64 until, used;

	if (v->latched == BY_LONGEST) {
		used = lesser(v->rules.longest / 2, beyond(v->rules.longest, least(&v->bucket)));
		until = beyond(beyond(v->used, beyond(now, v->ended)), used);
	} else {
		until = greater(half_full(&v->bucket), half_full(vm));
	}
	return greater(until, beyond(v->held_until, now));
}

RULE void restore(struct policy *v, struct bucket *vm, __u64 status)
{
	if (v->status == BOOSTED)
		stop_charging(v, vm);
	v->status = status;
}

RULE void throttle(struct policy *v, struct bucket *vm, __u64 denial)
{
	v->throttles++;
	v->too_long += denial == BY_LONGEST;
	v->by_vm += denial == BY_VM;
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
RULE void start_run(struct policy *v, const struct bucket *vm, __u64 now)
{
	v->run_end = v->rules.run >> halvings(&v->bucket);
	JOIN;
	v->run_end = plus(now, lesser(v->run_end, v->rules.run >> halvings(vm)));
}

/* A reason to boost; or it is boosted, and awake again. */
RULE void boost(struct policy *v, struct bucket *vm, __u64 now)
{
	v->denied += v->status == THROTTLED;
	if (v->status != NORMAL && v->step.event != WOKEN)
		return;
	v->step.denial = v->charging ? GRANTED : can_start(v, vm, now);
	JOIN;
	if (v->step.denial) {
		throttle(v, vm, v->step.denial);
		return;
	}
	if (!v->halted && !v->charging)
		start_charging(v, vm, now);
	JOIN;
	v->step.boosts = v->status == NORMAL;
	v->boosts += v->step.boosts;
	v->status = BOOSTED;
}

/* There is no reason to boost any more. `given_back`: its guest says so, in words that an honest guest writes. */
RULE void end_boost(struct policy *v, struct bucket *vm, __u64 given_back)
{
	if (v->status != BOOSTED)
		return;
	if (given_back)
		v->strikes = 0;
	restore(v, vm, NORMAL);
}

RULE __u64 on_timer(struct policy *v, struct bucket *vm, __u64 now)
{
	__u64 denial;

	if (v->run_end <= now)
		end_boost(v, vm, 1);
	JOIN;
	if (v->timer <= now)
		v->timer = NEVER;
	JOIN;
	if (v->status == BOOSTED && !v->halted) {
		denial = renew(v, vm);
		if (denial) {
			if (v->strikes >= FREE_STRIKES)
				v->held_until = plus(now, PENALTY << 2 * lesser(v->strikes - FREE_STRIKES, MOST_STEPS));
			v->strikes++;
			throttle(v, vm, denial);
		}
	} else if (v->status == THROTTLED && !recovery(v, vm, now)) {
		v->latched = GRANTED;
		v->status = NORMAL;
	}
	JOIN;
	if (v->status != BOOSTED || v->section_end > now)
		return 0;
	v->section_end = NEVER;
	return 1;
}

/*
 * Classes of tasks, as in words.rs of the ABI: which of them are urgent, and the bit that declares any task so. The other
 * bits of a class byte that is larger mean none.
 */
#define CLASSES 7
#define FAIR 1
#define URGENT_CLASSES 0x5c
#define RT_CLASSES 0x0c
#define DECLARED_TASK 0x80

/* Bits of the words, as there. */
#define PENDING_VALID (1ULL << 32)
#define IDLE_LOOP (1ULL << 33)
#define MOST_INTENT (IDLE_LOOP | (IDLE_LOOP - 1))
#define IN_INTERRUPT 0xffffffULL
#define PREEMPT_OFF (1ULL << 24)
#define CS_RESERVED 0xfe000000ULL
#define SECTION_SHIFT 32
#define REQUEST_BOOST 2

RULE __u64 class_of(__u64 task)
{
	__u64 class = task & 0x7f;

	return class < CLASSES ? class : 0;
}

RULE __u64 is_urgent(__u64 task)
{
	return (task & DECLARED_TASK) | (URGENT_CLASSES >> class_of(task) & 1);
}

/* Whether a class byte and a priority are ones that an honest guest writes. */
RULE __u64 is_task(__u64 task)
{
	__u64 class = task & 0x7f, prio = task >> 8 & 0xff, rt = RT_CLASSES >> class_of(task) & 1;
	__u64 most = rt ? 99 : class == FAIR ? 39 : 0;

	return class < CLASSES && prio >= rt && prio <= most;
}

RULE __u64 is_canonical(const struct words *words)
{
	__u64 intent = words->intent, pending = intent >> 16 & 0xffff;

	if (intent > MOST_INTENT || words->cs & CS_RESERVED || words->request > REQUEST_BOOST)
		return 0;
	return is_task(intent & 0xffff) && (intent & PENDING_VALID ? is_task(pending) : !pending);
}

/* Whether the words ask for a boost. */
RULE __u64 asks(const struct words *words)
{
	__u64 intent = words->intent;
	__u64 runs = intent & IDLE_LOOP ? 0 : is_urgent(intent);
	__u64 pends = intent & PENDING_VALID ? is_urgent(intent >> 16) : 0;

	return words->request == REQUEST_BOOST || words->cs & IN_INTERRUPT || runs || pends;
}

/* Evaluates the words, and stores what they say about tickets, sections and idle. */
RULE __u64 judge(struct policy *v, const struct words *words, __u64 now)
{
	__u64 answers = words->ack <= v->ticket, number = words->cs >> SECTION_SHIFT;

	v->canonical = answers && is_canonical(words);
	JOIN;
	if (answers)
		v->acked = greater(v->acked, words->ack);
	if (!(words->intent & IDLE_LOOP))
		v->waking = 0;
	JOIN;
	if (!(words->cs & PREEMPT_OFF)) {
		v->in_section = 0;
	} else if (!v->in_section || v->section != number) {
		v->in_section = 1;
		v->section = number;
		v->section_since = now;
	}
	JOIN;
	if (v->acked < v->ticket || v->waking || (v->rules.on_request && asks(words)))
		return URGENT;
	if (!v->in_section || !v->rules.on_request)
		return NOTHING;
	return beyond(now, v->section_since) < v->rules.max_preempt_off ? SECTION : LONG_SECTION;
}

/* The vCPU has come or gone, or its guest has. */
RULE void enable(struct policy *v, struct bucket *vm, __u64 now)
{
	__u64 on = v->attached && (v->registered || !v->rules.is_dynamic);

	if (on && v->status == DISABLED) {
		/* What was injected while the guest's hooks were off will never be acknowledged. */
		v->acked = v->ticket;
		if (!recovery(v, vm, now))
			v->latched = GRANTED;
		v->status = v->latched ? THROTTLED : NORMAL;
	} else if (!on && v->status != DISABLED) {
		restore(v, vm, DISABLED);
		v->timer = NEVER;
	}
}

/* Whether an interrupt is a reason for a boost. */
RULE int is_reason(const struct policy *v)
{
	__u64 event = v->step.event;

	return (event == INJECTED && v->rules.on_injection) || (event == ASKED && v->rules.on_asking);
}

/* Updates the state by an event, before it is known whether there is a reason for a boost. */
RULE void note_event(struct policy *v, struct bucket *vm, __u64 now)
{
	switch (v->step.event) {
	case ATTACHED:
	case LEFT:
		v->attached = v->step.event == ATTACHED;
		v->halted = 0;
		break;
	case REGISTERED:
	case UNREGISTERED:
		v->registered = v->step.event == REGISTERED;
		v->acked = v->ticket;
		v->in_section = 0;
		break;
	case HALTED:
		v->halted = 1;
		stop_charging(v, vm);
		if (v->status != THROTTLED)
			v->timer = NEVER;
		v->run_end = NEVER;
		v->waking = 0;
		break;
	case WOKEN:
		v->halted = 0;
		v->waking = v->status == BOOSTED;
		break;
	case INJECTED:
	case ASKED:
		v->ticket += v->status != DISABLED && is_reason(v);
		break;
	default:
		break;
	}
	JOIN;
	enable(v, vm, now);
	JOIN;
}

/* Whether the event evaluates the guest's words. */
RULE int is_look(const struct policy *v)
{
	__u64 event = v->step.event;

	return v->rules.is_dynamic && (event == HALTED || event == EXIT || event == RECHECK);
}

/* A boost begins, or ends, by what has happened. */
RULE void decide(struct policy *v, struct bucket *vm, __u64 now)
{
	__u64 event = v->step.event, need = v->step.need;
	int resumes = event == WOKEN && v->status == BOOSTED;
	int across = event == HALTED && (v->rules.across_idle || need == URGENT);
	/* It is boosted across idle, also if what it said on its way there is heard late. */
	int asleep = v->halted && (event == RECHECK || (event == EXIT && need == NOTHING && v->rules.across_idle));

	if (resumes || is_reason(v) || across || (event == EXIT && need >= SECTION)) {
		boost(v, vm, now);
	} else if (is_look(v) && !asleep && !(event == RECHECK && need == URGENT)) {
		end_boost(v, vm, v->canonical);
		v->denied += event == EXIT && need == LONG_SECTION && v->status == NORMAL;
	}
	JOIN;
}

/* Sets the time of the policy's next TIMER event. */
RULE void set_policy_timer(struct policy *v, struct bucket *vm, __u64 now)
{
	__u64 own = NEVER, at;

	if (v->status == BOOSTED && !v->halted)
		own = lesser(lesser(time_to_empty(&v->bucket), v->lease), left_at_once(v));
	else if (v->status == THROTTLED)
		own = greater(recovery(v, vm, now), 1);
	at = lesser(own == NEVER ? NEVER : plus(now, own), lesser(v->run_end, v->section_end));
	v->timer = lesser(v->timer, at);
	JOIN;
}

/* Handles an event. `now` must not go back within a VM. */
RULE void on_event(struct policy *v, struct bucket *vm, __u64 now, enum boost_event event, const struct words *words)
{
	v->step = (struct step){ .event = event };
	settle(v, vm, now);
	note_event(v, vm, now);
	if (is_look(v) && v->status != DISABLED) {
		v->step.need = judge(v, words, now);
		JOIN;
		v->section_end = NEVER;
		if (v->step.event == EXIT && v->step.need == SECTION)
			v->section_end = plus(v->section_since, v->rules.max_preempt_off);
	}
	if (is_reason(v))
		v->section_end = NEVER;
	JOIN;
	decide(v, vm, now);
	v->step.boosts = v->step.boosts && is_reason(v);
	JOIN;
	v->step.rechecks = v->step.boosts && v->rules.is_dynamic;
	if (!v->rules.is_dynamic && (v->step.event == WOKEN || v->step.boosts))
		start_run(v, vm, now);
	JOIN;
	/* A timer that is so late is lost, and any event does its work. */
	v->step.lost = v->step.event != TIMER && v->timer != NEVER && plus(v->timer, LOST_TIMER) <= now;
	if (v->step.lost)
		v->timer = NEVER;
	JOIN;
	if (v->step.lost || v->step.event == TIMER)
		v->step.rechecks |= on_timer(v, vm, now);
	JOIN;
	if (v->status != BOOSTED) {
		v->run_end = NEVER;
		v->section_end = NEVER;
		v->waking = 0;
	}
	JOIN;
	set_policy_timer(v, vm, now);
}

/* A policy that begins. It is taken to be awake. */
RULE void begin_policy(struct policy *v, const struct rules *rules, __u64 burst, __u64 refill_ppm, __u64 now)
{
	*v = (struct policy){ .timer = NEVER, .run_end = NEVER, .section_end = NEVER, .canonical = 1 };
	v->rules = *rules;
	v->bucket = full_bucket(burst, refill_ppm, now);
	v->excess = full_bucket(burst, EXCESS_PPM, now);
}

#endif
