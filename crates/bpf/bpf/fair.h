/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Fair queues of threads, ordered by virtual time: time on a CPU, divided by weight. There is one for each last-level
 * cache.
 */
#ifndef VCOOP_FAIR_H
#define VCOOP_FAIR_H

#include "ext.h"
#include "policy.h"

/* As in SCX and EEVDF: weight of nice 0, and about the base slice of a host with eight CPUs. */
#define WEIGHT 100
#define SLICE 3000000ULL

/* Most virtual time that a thread can be ahead of its queue, which bounds its wait. */
#define MOST_LEAD (4 * SLICE)

/*
 * CPU time that a vCPU got by its boosts beyond that is a debt. It pays while it runs without a boost, when its time counts
 * four times. That is the lowest weight, and below is the largest debt, as in repay.rs of the policy.
 */
#define MOST_DEBT 100000000ULL
#define PAID 3

#define MOST_CPUS 1024
#define MOST_QUEUES 256

/*
 * Set before it is loaded: how many CPUs and queues there are, whether it may write into a process's memory, and the queue
 * of each CPU. The kernel does not look at what cannot be reached by these.
 */
const volatile struct {
	u32 cpus, queues, writes;
	u32 queue_of[MOST_CPUS];
} host SEC(".rodata.host") = {};

/* Who runs on a CPU. */
struct cpu {
	/* Its virtual time when it began to run, when that was, and its weight; 0: nobody runs. */
	u64 vtime;
	u64 since;
	u64 weight;
	/* It is a boosted vCPU. */
	u64 boosted;
	/* A vCPU that waits in its queue was boosted. */
	u64 fetches;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_CPUS);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* The virtual time of a queue: that of the thread that began to run last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_QUEUES);
	__type(key, u32);
	__type(value, u64);
} queues SEC(".maps");

/* The queue to which a thread's virtual time belongs, plus 1; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} homes SEC(".maps");

static bool before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static u32 queue(s32 cpu)
{
	/* The verifier knows no bound of a CPU's number, and needs one. */
	u32 of = host.queue_of[(u32)cpu & (MOST_CPUS - 1)];

	return of < MOST_QUEUES ? of : 0;
}

static struct cpu *cpu_state(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&cpus, &key);
}

/* The virtual time of the thread that runs on a CPU. */
static u64 current_vtime(const struct cpu *cpu)
{
	u64 ran = beyond(bpf_ktime_get_ns(), cpu->since);

	return cpu->vtime + ran * WEIGHT / (cpu->weight ? cpu->weight : WEIGHT);
}

/*
 * Limits a virtual time to near that of its queue: a thread that slept for long, or comes from a queue that is behind, is at
 * most a slice ahead of the others, and none is so far behind them that it would wait for long. For a vCPU, time cut off
 * by the latter limit becomes a debt.
 */
static u64 bounded(u64 vtime, u64 reached, u64 *debt)
{
	if (before(vtime, reached - SLICE))
		return reached - SLICE;
	if (!before(reached + MOST_LEAD, vtime))
		return vtime;
	if (debt)
		*debt = lesser(*debt + vtime - reached - MOST_LEAD, MOST_DEBT);
	return reached + MOST_LEAD;
}

/* A thread's virtual time in a queue: as far from the queue's as it was in the queue before. */
static u64 vtime_in(struct task_struct *p, u32 of, u64 reached)
{
	u32 *home = bpf_task_storage_get(&homes, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	u64 vtime = p->scx.dsq_vtime, *left;
	u32 from;

	if (!home || *home == of + 1)
		return vtime;
	from = *home - 1;
	left = bpf_map_lookup_elem(&queues, &from);
	*home = of + 1;
	return left ? vtime + reached - *left : vtime;
}

/* The same for the thread that runs on a CPU, while others of its queue go on. */
static void catch_up(struct cpu *cpu, u32 of)
{
	u64 *reached = bpf_map_lookup_elem(&queues, &of);

	if (!reached || !before(current_vtime(cpu), *reached - SLICE))
		return;
	cpu->vtime = *reached - SLICE;
	cpu->since = bpf_ktime_get_ns();
}

#endif
