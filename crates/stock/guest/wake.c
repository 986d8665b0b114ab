/*
 * wake CLASS US COUNT: wakes up COUNT times, a millisecond apart, as a fair task that has asked for a slice of
 * US microseconds (CLASS: slice), or as a deadline task with that run time every two milliseconds (deadline); or
 * as a FIFO task that each time sleeps until US microseconds ago (past). Or it does not sleep: it writes a byte
 * to stderr and one to stdout COUNT times, and runs on for US microseconds after each (write). Or COUNT times it
 * holds a lock with priority inheritance for US microseconds on CPU 0, while a FIFO task on CPU 1 waits for it, and
 * then runs on for twice as long (hold).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread.h"

#define POLICY_OTHER 0
#define POLICY_FIFO 1
#define POLICY_DEADLINE 6

static void run_on(uint64_t ns)
{
	uint64_t from = now_ns();

	while (now_ns() - from < ns)
		;
}

/* On one CPU, as a FIFO task of this priority, or as a fair one. */
static int place(unsigned int cpu, uint32_t priority)
{
	struct attributes own = { .size = sizeof(own), .policy = priority ? POLICY_FIFO : POLICY_OTHER,
				  .priority = priority };
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	return sched_setaffinity(0, sizeof(cpus), &cpus) || syscall(SYS_sched_setattr, 0, &own, 0);
}

static int hold_and_run_on(uint64_t ns, long count)
{
	const struct timespec look = { .tv_nsec = 1000000 };
	struct {
		uint32_t lock;		/* thread id of who has it, and whether others wait */
		uint32_t turn;
	} *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = shared == MAP_FAILED ? -1 : fork();
	int failed = 0;

	if (child < 0 || place(!child, child ? 0 : 50))
		return 1;
	for (long turn = 1; turn <= count && !failed; turn++) {
		while (!child && __atomic_load_n(&shared->turn, __ATOMIC_ACQUIRE) != turn)
			nanosleep(&look, NULL);
		failed |= syscall(SYS_futex, &shared->lock, FUTEX_LOCK_PI, 0, NULL);
		if (child) {
			__atomic_store_n(&shared->turn, turn, __ATOMIC_RELEASE);
			run_on(ns);
		}
		failed |= syscall(SYS_futex, &shared->lock, FUTEX_UNLOCK_PI);
		if (child)
			run_on(2 * ns);
	}
	if (child)
		waitpid(child, NULL, 0);
	return failed;
}

static int write_and_run_on(uint64_t ns, long left)
{
	for (; left > 0; left--) {
		if (write(2, "", 1) != 1 || write(1, "", 1) != 1)
			return 1;
		run_on(ns);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct attributes own = { .size = sizeof(own), .policy = POLICY_OTHER };
	struct timespec wait = { .tv_nsec = 1000000 };
	int flags = 0;

	if (argc != 4) {
		fprintf(stderr, "wake CLASS US COUNT\n");
		return 2;
	}
	own.runtime_ns = strtoull(argv[2], NULL, 10) * 1000;
	if (!strcmp(argv[1], "write"))
		return write_and_run_on(own.runtime_ns, strtol(argv[3], NULL, 10));
	if (!strcmp(argv[1], "hold"))
		return hold_and_run_on(own.runtime_ns, strtol(argv[3], NULL, 10));
	if (!strcmp(argv[1], "deadline")) {
		own.policy = POLICY_DEADLINE;
		own.deadline_ns = own.period_ns = 2000000;
	}
	if (!strcmp(argv[1], "past")) {
		clock_gettime(CLOCK_MONOTONIC, &wait);
		wait.tv_sec -= own.runtime_ns / 1000000000;
		flags = TIMER_ABSTIME;
		own.policy = POLICY_FIFO;
		own.priority = 80;
	}
	if (syscall(SYS_sched_setattr, 0, &own, 0)) {
		perror("sched_setattr");
		return 1;
	}
	for (long left = strtol(argv[3], NULL, 10); left > 0; left--)
		while (clock_nanosleep(CLOCK_MONOTONIC, flags, &wait, NULL) == EINTR)
			;
	return 0;
}
