// SPDX-License-Identifier: GPL-2.0
/*
 * Feeds the guest half in user space.
 *
 * replay: steps on stdin, and what the half made of each on stdout, both as
 * structs of 64-bit words.
 * replay ROUNDS: how long an event takes with its stores into a pair of areas, in
 * nanoseconds, for each of some sequences of events.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../half.h"

enum op { FORGET, ON, CHECK, RUN, EXPECT };

struct step {
	uint64_t op, kind, flag, task, pending, status, ticket;
};

/* Words that are not to be stored are 0; of RUN, the words of the area. */
struct made {
	uint64_t flags, intent, cs, request, ack;
};

static struct vcoop_guest_area guest;
static struct vcoop_host_area host;

static struct made make(struct vcoop_half *half, const struct step *step)
{
	struct vcoop_event event = { step->kind, step->flag, step->task, step->pending };
	struct vcoop_view view = { step->status, step->ticket };
	struct made made = { 0 };

	switch ((enum op)step->op) {
	case FORGET:
		memset(half, 0, sizeof(*half));
		memset(&guest, 0, sizeof(guest));
		return made;
	case EXPECT:
		half->expecting = step->flag;
		return made;
	case ON:
		made.flags = vcoop_half_on(half, &event, &view);
		break;
	case CHECK:
		made.flags = vcoop_half_check(half, &view);
		break;
	case RUN:
		host.status = step->status;
		host.ticket = step->ticket;
		made.flags = vcoop_half_run(half, &event, &guest, &host);
		made.intent = guest.intent;
		made.cs = guest.cs;
		made.request = guest.request;
		made.ack = guest.ack;
		return made;
	}
	if (made.flags & VCOOP_STORE_INTENT)
		made.intent = half->shown.intent;
	if (made.flags & VCOOP_STORE_CS)
		made.cs = half->shown.cs;
	if (made.flags & VCOOP_STORE_REQUEST)
		made.request = half->shown.request;
	if (made.flags & VCOOP_STORE_ACK)
		made.ack = half->shown.ack;
	return made;
}

static int replay(void)
{
	struct vcoop_half half = { 0 };
	struct step step;
	struct made made;

	while (fread(&step, sizeof(step), 1, stdin) == 1) {
		made = make(&half, &step);
		if (fwrite(&made, sizeof(made), 1, stdout) != 1)
			return EXIT_FAILURE;
	}
	return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define FAIR VCOOP_TASK(VCOOP_CLASS_FAIR, 20)
#define FIFO VCOOP_TASK(VCOOP_CLASS_FIFO, 80)

static const struct vcoop_event interrupt[] = {
	{ .kind = VCOOP_IRQ_ENTER },
	{ .kind = VCOOP_IRQ_EXIT },
};

static const struct vcoop_event softirq[] = {
	{ .kind = VCOOP_IRQ_ENTER },
	{ .kind = VCOOP_IRQ_EXIT, .flag = true },
	{ .kind = VCOOP_SOFTIRQ_ENTER },
	{ .kind = VCOOP_SOFTIRQ_EXIT },
};

static const struct vcoop_event fair[] = {
	{ .kind = VCOOP_TASK_SWITCH, .task = FAIR },
	{ .kind = VCOOP_TASK_SWITCH, .task = FAIR + 256 },
};

static const struct vcoop_event wakeup[] = {
	{ .kind = VCOOP_IRQ_ENTER },
	{ .kind = VCOOP_RT_ENQUEUED, .task = FIFO },
	{ .kind = VCOOP_IRQ_EXIT },
	{ .kind = VCOOP_TASK_SWITCH, .task = FIFO },
	{ .kind = VCOOP_TASK_SWITCH, .task = FAIR },
};

static double ns_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* The least of several attempts: what else this machine does comes on top. */
static double measure(const struct vcoop_event *events, unsigned int count, uint64_t status,
		      unsigned long rounds)
{
	struct vcoop_half half = { 0 };
	double least = 1e9, begin, ns;
	unsigned long round;
	unsigned int i, attempt;

	host.status = status;
	for (attempt = 0; attempt < 10; attempt++) {
		begin = ns_now();
		for (round = 0; round < rounds; round++)
			for (i = 0; i < count; i++)
				vcoop_half_run(&half, &events[i], &guest, &host);
		ns = (ns_now() - begin) / ((double)rounds * count);
		if (ns < least)
			least = ns;
	}
	return least;
}

#define SEQUENCE(name) { #name, name, sizeof(name) / sizeof(name[0]) }

static void bench(unsigned long rounds)
{
	static const struct {
		const char *name;
		const struct vcoop_event *events;
		unsigned int count;
	} sequences[] = {
		SEQUENCE(interrupt), SEQUENCE(softirq), SEQUENCE(fair), SEQUENCE(wakeup),
	};
	static const char *const statuses[] = { "disabled", "normal", "boosted", "throttled" };
	unsigned int i, status;

	for (status = VCOOP_STATUS_DISABLED; status <= VCOOP_STATUS_THROTTLED; status++)
		for (i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++)
			printf("%s %s %.1f\n", sequences[i].name, statuses[status],
			       measure(sequences[i].events, sequences[i].count, status, rounds));
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return replay();
	bench(strtoul(argv[1], NULL, 10));
	return EXIT_SUCCESS;
}
