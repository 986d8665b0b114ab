// SPDX-License-Identifier: GPL-2.0
/*
 * Feeds the rules of ../bpf/wake_boost.h from standard input, and writes the state after each step. A step is five
 * words of 64 bits: what, of which vCPU, when, and two that depend on it.
 */
#include <stdio.h>
#include "../bpf/wake_boost.h"

#define VCPUS 2

int main(void)
{
	static struct wake_boost vcpus[VCPUS];
	static struct bucket vm;
	__u64 step[5];

	while (fread(step, sizeof(step), 1, stdin) == 1) {
		struct wake_boost *v = &vcpus[step[1] % VCPUS];
		struct timer_change change = { NEVER, 0 };

		if (step[0] == 100) {
			vm = full_bucket(step[3], step[4], step[2]);
		} else if (step[0] == 101) {
			*v = (struct wake_boost){ .timer = NEVER, .run_end = NEVER };
			v->bucket = full_bucket(step[3], step[4], step[2]);
		} else if (step[0] == 102) {
			v->run = step[3];
			v->on_injection = step[4];
		} else {
			change = on_event(v, &vm, step[2], (enum boost_event)step[0]);
		}
		__u64 told[] = { v->status, change.at, change.cancel, v->boosted_ns, v->boosts, v->throttles,
				 v->denied, level(&v->bucket), level(&vm) };

		if (fwrite(told, sizeof(told), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
