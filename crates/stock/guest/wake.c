/*
 * wake CLASS US COUNT: wakes up COUNT times, a millisecond apart, as a fair task that has asked for a slice of
 * US microseconds (CLASS: slice), or as a deadline task with that run time every two milliseconds (deadline); or
 * as a FIFO task that each time sleeps until US microseconds ago (past). Or it does not sleep: it writes a byte
 * to stderr and one to stdout COUNT times, and runs on for US microseconds after each (write).
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POLICY_OTHER 0
#define POLICY_FIFO 1
#define POLICY_DEADLINE 6

struct attributes {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime_ns;
	uint64_t deadline_ns;
	uint64_t period_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static int write_and_run_on(uint64_t ns, long left)
{
	uint64_t from;

	for (; left > 0; left--) {
		from = now_ns();
		if (write(2, "", 1) != 1 || write(1, "", 1) != 1)
			return 1;
		while (now_ns() - from < ns)
			;
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
