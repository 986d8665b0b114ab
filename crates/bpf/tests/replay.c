// SPDX-License-Identifier: GPL-2.0
/*
 * Feeds the rules of ../bpf/policy.h from standard input, and writes the state after each step. A step is words of
 * 64 bits: kind, vCPU, time, and operands of that kind.
 */
#include <stdio.h>
#include "../bpf/policy.h"

#define VCPUS 2

/* After each step the budget is also read for this much later. */
#define LATER 50000

enum { VM = 100, VCPU, DEADLINE };

int main(void)
{
	static struct policy vcpus[VCPUS];
	static struct bucket vm;
	struct { __u64 what, vcpu, at, burst, refill_ppm; struct rules rules; struct words words; } step;

	while (fread(&step, sizeof(step), 1, stdin) == 1) {
		struct policy *v = &vcpus[step.vcpu % VCPUS];
		__u64 at = 0;

		if (step.what == VM)
			vm = full_bucket(step.burst, step.refill_ppm, step.at);
		else if (step.what == VCPU)
			begin_policy(v, &step.rules, step.burst, step.refill_ppm, step.at);
		else if (step.what == DEADLINE)
			at = boost_from(step.words.intent, step.words.cs, step.at, step.words.request, step.words.ack);
		else
			on_event(v, &vm, step.at, (enum boost_event)step.what, &step.words);
		if (step.what != DEADLINE)
			at = v->timer;
		__u64 told[] = { v->status, at, v->step.rechecks, v->ticket, v->boosted_ns, v->boosts,
				 v->throttles, v->too_long, v->by_vm, v->denied, level(&v->bucket), level(&vm),
				 budget_left(v, step.at + LATER) };

		if (fwrite(told, sizeof(told), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
