/*
 * shares AWAY ON OFF SECONDS: two loops of different control groups on CPU 1; prints how much of their CPU time, in
 * hundredths, the first one has. On CPU 0 a thread of the first one's group works for ON milliseconds and sleeps for
 * OFF. While it sleeps it is in the class AWAY, "other" or "fifo".
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "group.h"
#include "thread.h"

static void become(int policy, int priority)
{
	const struct sched_param param = { .sched_priority = priority };

	if (sched_setscheduler(0, policy, &param) != 0) {
		perror("sched_setscheduler");
		exit(1);
	}
}

static void enter(const char *group, int cpu)
{
	cpu_set_t only;

	join(group, getpid());
	CPU_ZERO(&only);
	CPU_SET(cpu, &only);
	if (sched_setaffinity(0, sizeof(only), &only) != 0) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static void work_and_sleep(uint64_t on_ns, uint64_t off_ns, int leaves)
{
	for (uint64_t begins = now_ns();;) {
		while (now_ns() < begins + on_ns)
			;
		begins += on_ns + off_ns;
		if (leaves)
			become(SCHED_FIFO, 1);
		sleep_until(begins);
		if (leaves)
			become(SCHED_OTHER, 0);
	}
}

static uint64_t cpu_time(pid_t pid)
{
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) != 0)
		exit(1);
	return clock_ns(clock);
}

int main(int argc, char **argv)
{
	static const char *const groups[] = { "own", "own", "other" };
	pid_t all[3];
	uint64_t used[2];

	if (argc != 5)
		return 2;
	make_group("own", "100", "max");
	make_group("other", "100", "max");
	for (int i = 0; i < 3; i++) {
		all[i] = fork();
		if (all[i] != 0)
			continue;
		enter(groups[i], i > 0);
		if (i == 0)
			work_and_sleep(atoi(argv[2]) * 1000000ULL, atoi(argv[3]) * 1000000ULL, strcmp(argv[1], "fifo") == 0);
		for (;;)
			;
	}
	/* Averages of loads forget half in 32 ms. */
	sleep_until(now_ns() + 500000000);
	for (int i = 0; i < 2; i++)
		used[i] = cpu_time(all[i + 1]);
	sleep_until(now_ns() + (uint64_t)(atof(argv[4]) * 1e9));
	for (int i = 0; i < 2; i++)
		used[i] = cpu_time(all[i + 1]) - used[i];
	for (int i = 0; i < 3; i++) {
		kill(all[i], SIGKILL);
		waitpid(all[i], NULL, 0);
	}
	printf("%.1f\n", 100.0 * used[0] / (used[0] + used[1]));
	return 0;
}
