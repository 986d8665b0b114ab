/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The guest half: what happens on a vCPU, to the words of its guest area.
 *
 * The same state machine as GuestHalf in crates/policy/src/guest.rs, event by
 * event and store by store. It compiles in the kernel and in user space, where
 * a test feeds both the same events. One of these a vCPU, on that vCPU, with
 * interrupts off; vcoop_half_run() does with a pair of areas
 *
 *	stores = vcoop_half_on(half, &event, &view);
 *	store the words that stores names, in the order of the flags
 *	if (stores & VCOOP_CHECK) {
 *		full fence; load the status again;
 *		stores = vcoop_half_check(half, &view);
 *		store them; if (stores & VCOOP_NOTIFY) ring;
 *	}
 */
#ifndef VCOOP_HALF_H
#define VCOOP_HALF_H

#ifndef __KERNEL__
#include <stdbool.h>
#endif

#include "vcoop_abi.h"

enum vcoop_event_kind {
	VCOOP_IRQ_ENTER,
	VCOOP_IRQ_EXIT,		/* flag: softirqs run before the task goes on */
	VCOOP_NMI_ENTER,
	VCOOP_NMI_EXIT,
	VCOOP_SOFTIRQ_ENTER,
	VCOOP_SOFTIRQ_EXIT,
	VCOOP_PREEMPT_OFF,
	VCOOP_PREEMPT_ON,
	VCOOP_TASK_SWITCH,	/* task: that runs; flag: pending is there */
	VCOOP_RT_ENQUEUED,	/* task: of an urgent class, queued here */
	VCOOP_NEED_RESCHED,
	VCOOP_IDLE_ENTER,
	VCOOP_USER_RETURN,
};

/* Tasks are VCOOP_TASK() of 16 bits, with a priority in the class's range. */
struct vcoop_event {
	enum vcoop_event_kind kind;
	bool flag;
	uint16_t task;
	uint16_t pending;
};

/* What the guest saw of the host. */
struct vcoop_view {
	uint64_t status;
	uint64_t ticket;
};

/* Words to store, in this order; what else to do. */
#define VCOOP_STORE_INTENT	0x1	/* half->shown.intent */
#define VCOOP_STORE_CS		0x2	/* half->shown.cs */
#define VCOOP_STORE_REQUEST	0x4	/* half->shown.request */
#define VCOOP_STORE_ACK		0x8	/* half->shown.ack */
#define VCOOP_CHECK		0x10
#define VCOOP_NOTIFY		0x20

struct vcoop_half {
	uint64_t intent;
	uint64_t cs;
	uint64_t taken;		/* ticket seen when an interrupt began */
	uint64_t handled;	/* highest ticket to acknowledge */
	struct {
		uint64_t intent, cs, request, ack;
	} shown;		/* what the page holds, if it is valid */
	bool valid;
	bool softirq_owed;
	bool resched_owed;
	bool unchecked;		/* urgent things were shown since the last check */
	bool expecting;		/* caller: an urgent timer is about to expire */
};

/* An enum vcoop_class, or a value that is none. */
static inline unsigned int vcoop_task_class(uint16_t task)
{
	return task & 0xff & ~VCOOP_TASK_DECLARED;
}

/* Whether a task is latency sensitive, by its class or by declaration. */
bool vcoop_task_is_urgent(uint16_t task);

/* The order in which Linux picks; a declared task comes before all not urgent. */
unsigned int vcoop_task_urgency(uint16_t task);

unsigned int vcoop_half_on(struct vcoop_half *half,
			   const struct vcoop_event *event,
			   const struct vcoop_view *host);
unsigned int vcoop_half_check(struct vcoop_half *half,
			      const struct vcoop_view *host);

/* An event on a pair of areas; no host: none is there. True: ring now. */
bool vcoop_half_run(struct vcoop_half *half, const struct vcoop_event *event,
		    struct vcoop_guest_area *guest,
		    const struct vcoop_host_area *host);

/* The host as its area shows it. */
struct vcoop_view vcoop_view_of(const struct vcoop_host_area *host);

/* A status that is not known means that the host is not understood. */
static inline bool vcoop_is_disabled(uint64_t status)
{
	return status < VCOOP_STATUS_NORMAL || status > VCOOP_STATUS_THROTTLED;
}

#endif
