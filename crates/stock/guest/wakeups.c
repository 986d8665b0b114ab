/*
 * wakeups POLICY US HOGS SECONDS [WEIGHT MAX MEMBERS OTHER]: works US microseconds every 8.3 ms beside HOGS loops, and
 * prints how much later than due it ran: number of wake-ups, mean, median, 90th and 99th percentile and maximum in
 * microseconds; and in how many of a hundred wake-ups it was on a CPU with two of the loops.
 * POLICY: "other", "slice" (300 us) or "nice" (-5).
 * HOGS: a number; "1d" is one with a reservation of 3 ms in 9.7 ms (SCHED_DEADLINE).
 * WEIGHT: it is in a control group with this cpu.weight and the cpu.max MAX, of which MEMBERS of the loops are as well;
 * all others are in a second group, with the cpu.weight OTHER.
 *
 * It reads no clock while it works: where a thread reads its own CPU time, the kernel accounts for it.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group.h"
#include "thread.h"

#define PERIOD_NS 8300000ULL
#define CALIBRATION 20000000ULL
#define MOST_HOGS 8
#define DEADLINE 6
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

static int loops_beside(const volatile int *cpus, int count)
{
	int own = sched_getcpu(), beside = 0;

	for (int i = 0; i < count; i++)
		beside += cpus[i] == own;
	return beside;
}

static void set(const struct attributes *attributes)
{
	if (syscall(SYS_sched_setattr, 0, attributes, 0) != 0)
		perror("sched_setattr");
}

/* The two groups; the process joins the first, and the loops after the first so many the second. */
static void into_groups(char **groups, const pid_t *hogs, int count)
{
	make_group("own", groups[0], groups[1]);
	make_group("other", groups[3], "max");
	join("own", getpid());
	for (int i = 0; i < count; i++)
		join(i < atoi(groups[2]) ? "own" : "other", hogs[i]);
}

int main(int argc, char **argv)
{
	static uint64_t late[MOST_WAKEUPS];
	struct attributes attributes = { .size = sizeof(attributes) };
	/* No multiple of a tick: it meets all phases of it. */
	const struct attributes reserved = {
		.size = sizeof(reserved),
		.policy = DEADLINE,
		.runtime_ns = 3000000,
		.deadline_ns = 9700000,
		.period_ns = 9700000,
	};
	pid_t hogs[MOST_HOGS];
	uint64_t began, turns, due, woke, end, sum = 0;
	int count, n = 0, beside_two = 0;
	/* The CPU of each loop, which the loop writes. */
	volatile int *cpus = mmap(NULL, sizeof(*cpus) * MOST_HOGS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (cpus == MAP_FAILED || (argc != 5 && argc != 9) || (count = atoi(argv[3])) < 0 || count > MOST_HOGS)
		return 2;
	began = now_ns();
	turn(CALIBRATION);
	turns = strtoull(argv[2], NULL, 10) * 1000 * CALIBRATION / (now_ns() - began);
	for (int i = 0; i < count; i++) {
		hogs[i] = fork();
		if (hogs[i] == 0 && strchr(argv[3], 'd'))
			set(&reserved);
		while (hogs[i] == 0) {
			cpus[i] = sched_getcpu();
			turn(1000);
		}
	}
	if (argc == 9)
		into_groups(argv + 5, hogs, count);
	if (strcmp(argv[1], "slice") == 0)
		attributes.runtime_ns = 300000;
	if (strcmp(argv[1], "nice") == 0)
		attributes.nice = -5;
	set(&attributes);
	/* The default slack of a fair thread's timers is 50 us. */
	prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
	due = now_ns() + 200000000;
	end = due + (uint64_t)(atof(argv[4]) * 1e9);
	while (due < end && n < MOST_WAKEUPS) {
		sleep_until(due);
		woke = now_ns();
		late[n] = woke - due;
		sum += late[n++];
		beside_two += loops_beside(cpus, count) == 2;
		turn(turns);
		/* As cyclictest, it leaves out what was overdue when it woke up. */
		do
			due += PERIOD_NS;
		while (due < woke);
	}
	for (int i = 0; i < count; i++) {
		kill(hogs[i], SIGKILL);
		waitpid(hogs[i], NULL, 0);
	}
	if (n == 0)
		return 1;
	qsort(late, n, sizeof(*late), by_value);
	printf("%d %.1f %.1f %.1f %.1f %.1f %.1f\n", n, sum / 1e3 / n, late[n / 2] / 1e3, late[n * 9 / 10] / 1e3,
	       late[n * 99 / 100] / 1e3, late[n - 1] / 1e3, 100.0 * beside_two / n);
	return 0;
}
