// SPDX-License-Identifier: GPL-2.0
/*
 * An audio callback: a periodic real-time task with a deadline.
 *
 * audio PERIOD_US WORK_US SECONDS: every period a task of SCHED_FIFO 80 computes
 * for WORK_US, and has to be done when the next period begins. A callback that is
 * not, and each period that it runs into, is a glitch. The work is a number of
 * turns, not a time: what the CPU does for others meanwhile makes it no shorter.
 *
 * It prints name=value lines for `vcoop compare --exec`.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PRIORITY 80
#define TRIES 50

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

static void compute(uint64_t turns)
{
	while (turns--)
		__asm__ volatile("");
}

/* Turns that take so long on a CPU of one's own: those of the fastest try. */
static uint64_t turns_of(uint64_t ns)
{
	uint64_t turns = 10000, fastest = UINT64_MAX;
	int i;

	for (i = 0; i < TRIES; i++) {
		uint64_t begin = now_ns(), took;

		compute(turns);
		took = now_ns() - begin;
		if (took < fastest)
			fastest = took;
	}
	return turns * ns / (fastest ? fastest : 1);
}

int main(int argc, char **argv)
{
	struct sched_param param = { .sched_priority = PRIORITY };
	uint64_t period, turns, due, end, callbacks = 0, glitches = 0, late = 0, latest = 0;

	if (argc != 4 || !(period = strtoull(argv[1], NULL, 10) * 1000)) {
		fprintf(stderr, "usage: audio PERIOD_US WORK_US SECONDS\n");
		return 2;
	}
	if (mlockall(MCL_CURRENT | MCL_FUTURE) || sched_setscheduler(0, SCHED_FIFO, &param)) {
		perror("audio");
		return 1;
	}
	turns = turns_of(strtoull(argv[2], NULL, 10) * 1000);
	due = now_ns() + period;
	end = due + (uint64_t)(strtod(argv[3], NULL) * 1e9);
	while (due < end) {
		uint64_t done, took, missed;

		sleep_until(due);
		compute(turns);
		done = now_ns();
		took = done - due;
		/* The buffer runs empty once for each period that the callback runs into. */
		missed = took / period;
		callbacks += 1 + missed;
		glitches += missed;
		late += took;
		if (took > latest)
			latest = took;
		due += (1 + missed) * period;
	}
	printf("callbacks=%llu\nglitches=%llu\nglitches_per_min=%.3f\ndone_mean_us=%.1f\ndone_max_us=%.1f\n",
	       (unsigned long long)callbacks, (unsigned long long)glitches,
	       glitches * 60e9 / (callbacks * period), late / 1e3 / (callbacks - glitches),
	       latest / 1e3);
	return 0;
}
