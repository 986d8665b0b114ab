/*
 * wakeups POLICY US HOGS SECONDS: works US microseconds every 8.3 ms beside HOGS loops, and prints how much later than
 * due it ran: number of wake-ups, mean, median, 90th and 99th percentile and maximum in microseconds.
 * POLICY: "other", "slice" (300 us) or "nice" (-5).
 *
 * It reads no clock while it works: where a thread reads its own CPU time, the kernel accounts for it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread.h"

#define PERIOD_NS 8300000ULL
#define CALIBRATION 20000000ULL
#define MOST_HOGS 8
#define MOST_WAKEUPS 100000

static void __attribute__((noinline)) turn(uint64_t turns)
{
	while (turns-- > 0)
		__asm__ volatile("" ::: "memory");
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static uint64_t late[MOST_WAKEUPS];
	struct attributes attributes = { .size = sizeof(attributes) };
	pid_t hogs[MOST_HOGS];
	uint64_t began, turns, due, end, sum = 0;
	int count, n = 0;

	if (argc != 5 || (count = atoi(argv[3])) < 0 || count > MOST_HOGS)
		return 2;
	began = now_ns();
	turn(CALIBRATION);
	turns = strtoull(argv[2], NULL, 10) * 1000 * CALIBRATION / (now_ns() - began);
	for (int i = 0; i < count; i++) {
		hogs[i] = fork();
		while (hogs[i] == 0)
			turn(1000);
	}
	if (strcmp(argv[1], "slice") == 0)
		attributes.runtime_ns = 300000;
	if (strcmp(argv[1], "nice") == 0)
		attributes.nice = -5;
	if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0)
		perror("sched_setattr");
	/* The default slack of a fair thread's timers is 50 us. */
	prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
	due = now_ns() + 200000000;
	end = due + (uint64_t)(atof(argv[4]) * 1e9);
	while (due < end && n < MOST_WAKEUPS) {
		struct timespec at = { due / 1000000000, due % 1000000000 };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		late[n] = now_ns() - due;
		sum += late[n++];
		turn(turns);
		/* What is overdue is left out. */
		do
			due += PERIOD_NS;
		while (due < now_ns());
	}
	for (int i = 0; i < count; i++) {
		kill(hogs[i], SIGKILL);
		waitpid(hogs[i], NULL, 0);
	}
	if (n == 0)
		return 1;
	qsort(late, n, sizeof(*late), by_value);
	printf("%d %.1f %.1f %.1f %.1f %.1f\n", n, sum / 1e3 / n, late[n / 2] / 1e3, late[n * 9 / 10] / 1e3,
	       late[n * 99 / 100] / 1e3, late[n - 1] / 1e3);
	return 0;
}
