// SPDX-License-Identifier: GPL-2.0
/*
 * The guest half's state machine; see half.h. Barriers are virt_ ones: to the words
 * of the page the host is another CPU, also where the kernel is built for one.
 */
#ifdef __KERNEL__
#include <asm/barrier.h>
#else
#define virt_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define virt_load_acquire(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)
#define virt_store_release(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
#endif

#include "half.h"

#define CS_INTERRUPTS \
	(0xffULL << VCOOP_CS_NMI_SHIFT | 0xffULL << VCOOP_CS_HARDIRQ_SHIFT | \
	 0xffULL << VCOOP_CS_SOFTIRQ_SHIFT)
#define CS_OUTERMOST \
	(0xffULL << VCOOP_CS_NMI_SHIFT | 0xffULL << VCOOP_CS_HARDIRQ_SHIFT)
#define PENDING (0xffffULL << VCOOP_INTENT_PENDING_SHIFT)

bool vcoop_task_is_urgent(uint16_t task)
{
	switch (vcoop_task_class(task)) {
	case VCOOP_CLASS_FIFO:
	case VCOOP_CLASS_RR:
	case VCOOP_CLASS_DEADLINE:
	case VCOOP_CLASS_STOP:
		return true;
	default:
		return task & VCOOP_TASK_DECLARED;
	}
}

unsigned int vcoop_task_urgency(uint16_t task)
{
	unsigned int prio = task >> 8;

	switch (vcoop_task_class(task)) {
	case VCOOP_CLASS_STOP:
		return 255;
	case VCOOP_CLASS_DEADLINE:
		return 254;
	case VCOOP_CLASS_FIFO:
	case VCOOP_CLASS_RR:
		return 100 + prio;
	}
	if (task & VCOOP_TASK_DECLARED)
		return 42;
	switch (vcoop_task_class(task)) {
	case VCOOP_CLASS_FAIR:
		return 41 - prio;
	case VCOOP_CLASS_IDLE:
		return 1;
	default:
		return 0;
	}
}

/* Depths stay within their byte: one too many must not spill into the next. */
static void deeper(uint64_t *cs, unsigned int shift)
{
	if ((*cs >> shift & 0xff) != 0xff)
		*cs += 1ULL << shift;
}

static void shallower(uint64_t *cs, unsigned int shift)
{
	if (*cs >> shift & 0xff)
		*cs -= 1ULL << shift;
}

/*
 * Interrupts count as handled when the outermost one ends: an inner one read a
 * ticket that may belong to an interrupt still waiting behind the outer one.
 */
static void handle(struct vcoop_half *half)
{
	if (!(half->cs & CS_OUTERMOST))
		half->handled = half->taken;
}

static uint64_t pending(uint16_t task)
{
	return (uint64_t)task << VCOOP_INTENT_PENDING_SHIFT |
	       VCOOP_INTENT_PENDING_VALID;
}

static void note(struct vcoop_half *half, const struct vcoop_event *event,
		 uint64_t ticket)
{
	switch (event->kind) {
	case VCOOP_IRQ_ENTER:
		deeper(&half->cs, VCOOP_CS_HARDIRQ_SHIFT);
		half->taken = ticket;
		break;
	case VCOOP_IRQ_EXIT:
		shallower(&half->cs, VCOOP_CS_HARDIRQ_SHIFT);
		half->softirq_owed = event->flag;
		handle(half);
		break;
	case VCOOP_NMI_ENTER:
		deeper(&half->cs, VCOOP_CS_NMI_SHIFT);
		half->taken = ticket;
		break;
	case VCOOP_NMI_EXIT:
		shallower(&half->cs, VCOOP_CS_NMI_SHIFT);
		handle(half);
		break;
	case VCOOP_SOFTIRQ_ENTER:
		deeper(&half->cs, VCOOP_CS_SOFTIRQ_SHIFT);
		half->softirq_owed = false;
		break;
	case VCOOP_SOFTIRQ_EXIT:
		shallower(&half->cs, VCOOP_CS_SOFTIRQ_SHIFT);
		break;
	case VCOOP_PREEMPT_OFF:
		if (!(half->cs & VCOOP_CS_PREEMPT_OFF))
			half->cs += 1ULL << VCOOP_CS_SECTION_SHIFT;
		half->cs |= VCOOP_CS_PREEMPT_OFF;
		break;
	case VCOOP_PREEMPT_ON:
		half->cs &= ~VCOOP_CS_PREEMPT_OFF;
		break;
	case VCOOP_TASK_SWITCH:
		half->softirq_owed = false;
		half->resched_owed = false;
		half->intent = event->task;
		if (event->flag)
			half->intent |= pending(event->pending);
		break;
	case VCOOP_RT_ENQUEUED:
		if ((half->intent & VCOOP_INTENT_PENDING_VALID) &&
		    vcoop_task_urgency(half->intent >> VCOOP_INTENT_PENDING_SHIFT) >=
			    vcoop_task_urgency(event->task))
			break;
		half->intent = (half->intent & ~PENDING) | pending(event->task);
		break;
	case VCOOP_NEED_RESCHED:
		half->resched_owed = true;
		break;
	case VCOOP_IDLE_ENTER:
		half->softirq_owed = false;
		half->resched_owed = false;
		half->intent = VCOOP_INTENT_IDLE;
		break;
	case VCOOP_USER_RETURN:
		half->resched_owed = false;
		break;
	}
}

/* Whether a boost is wanted. */
static bool is_urgent(const struct vcoop_half *half)
{
	if ((half->cs & CS_INTERRUPTS) || half->softirq_owed || half->resched_owed)
		return true;
	if (!(half->intent & VCOOP_INTENT_IDLE) && vcoop_task_is_urgent(half->intent))
		return true;
	return (half->intent & VCOOP_INTENT_PENDING_VALID) &&
	       vcoop_task_is_urgent(half->intent >> VCOOP_INTENT_PENDING_SHIFT);
}

/* Whether a boost has nobody who needs it. */
static bool is_quiet(const struct vcoop_half *half)
{
	return !is_urgent(half) && !(half->cs & VCOOP_CS_PREEMPT_OFF) &&
	       !(half->intent & VCOOP_INTENT_IDLE) && !half->expecting;
}

/* What must be stored for the page to show the state, with this request. */
static unsigned int publish(struct vcoop_half *half, uint64_t request)
{
	unsigned int stores = 0;

	if (!half->valid || half->shown.intent != half->intent)
		stores |= VCOOP_STORE_INTENT;
	if (!half->valid || half->shown.cs != half->cs)
		stores |= VCOOP_STORE_CS;
	if (!half->valid || half->shown.request != request)
		stores |= VCOOP_STORE_REQUEST;
	if (!half->valid || half->shown.ack != half->handled)
		stores |= VCOOP_STORE_ACK;
	half->valid = true;
	half->shown.intent = half->intent;
	half->shown.cs = half->cs;
	half->shown.request = request;
	half->shown.ack = half->handled;
	return stores;
}

unsigned int vcoop_half_on(struct vcoop_half *half,
			   const struct vcoop_event *event,
			   const struct vcoop_view *host)
{
	unsigned int stores;
	bool urgent;

	note(half, event, host->ticket);
	if (vcoop_is_disabled(host->status)) {
		/* The page may be given away meanwhile: show everything next time. */
		half->valid = false;
		return 0;
	}
	urgent = is_urgent(half);
	if (urgent)
		stores = publish(half, VCOOP_REQUEST_BOOST);
	else if (half->valid && half->shown.request == VCOOP_REQUEST_UNBOOST)
		/* The answer to the last boost stands until there is news. */
		stores = publish(half, VCOOP_REQUEST_UNBOOST);
	else
		stores = publish(half, VCOOP_REQUEST_NONE);
	half->unchecked |= urgent;
	if (is_quiet(half) &&
	    (half->unchecked || host->status == VCOOP_STATUS_BOOSTED))
		stores |= VCOOP_CHECK;
	return stores;
}

unsigned int vcoop_half_check(struct vcoop_half *half,
			      const struct vcoop_view *host)
{
	if (!is_quiet(half))
		return 0;
	half->unchecked = false;
	if (host->status != VCOOP_STATUS_BOOSTED)
		return 0;
	return publish(half, VCOOP_REQUEST_UNBOOST) | VCOOP_NOTIFY;
}

struct vcoop_view vcoop_view_of(const struct vcoop_host_area *host)
{
	struct vcoop_view view = { .status = VCOOP_STATUS_DISABLED };

	if (host) {
		view.status = virt_load_acquire(&host->status);
		view.ticket = virt_load_acquire(&host->ticket);
	}
	return view;
}

/* Each pairs with the acquire loads of the host, which loads the ack first. */
static void store(const struct vcoop_half *half, unsigned int stores,
		  struct vcoop_guest_area *guest)
{
	if (stores & VCOOP_STORE_INTENT)
		virt_store_release(&guest->intent, half->shown.intent);
	if (stores & VCOOP_STORE_CS)
		virt_store_release(&guest->cs, half->shown.cs);
	if (stores & VCOOP_STORE_REQUEST)
		virt_store_release(&guest->request, half->shown.request);
	if (stores & VCOOP_STORE_ACK)
		virt_store_release(&guest->ack, half->shown.ack);
}

bool vcoop_half_run(struct vcoop_half *half, const struct vcoop_event *event,
		    struct vcoop_guest_area *guest,
		    const struct vcoop_host_area *host)
{
	struct vcoop_view view = vcoop_view_of(host);
	unsigned int stores = vcoop_half_on(half, event, &view);

	store(half, stores, guest);
	if (!(stores & VCOOP_CHECK))
		return false;
	/* Pairs with the host's, between its status and its look at these words. */
	virt_mb();
	view = vcoop_view_of(host);
	stores = vcoop_half_check(half, &view);
	store(half, stores, guest);
	return stores & VCOOP_NOTIFY;
}
