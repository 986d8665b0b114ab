// SPDX-License-Identifier: GPL-2.0
/*
 * scx_vcoop: a sched_ext scheduler for a whole host, in which vCPUs are boosted where their reason is known.
 *
 * It is weighted-fair for all threads: a queue for each last-level cache, ordered by virtual time (time on a CPU, divided
 * by weight), slices, and preemption at a wake-up by whoever is behind by more than half a slice. A vCPU thread that is
 * admitted has the policy `wake-boost` or `dynamic` (policy.h). While it is boosted it goes first: in front of its CPU's
 * local queue, preempting. Boosted time counts as virtual time like any other, so that a boost changes when a vCPU runs,
 * and not how much.
 *
 * What a boost begins and ends with comes from the scheduler's own calls (it sleeps, it wakes up), from KVM (an
 * interrupt for a vCPU that was preempted, or is before it has taken it), from a timer of each vCPU, and under `dynamic`
 * from the page that its guest shares with this host. That page is mapped in the VMM, whose thread the vCPU is: so it is
 * read and written by the vCPU's own thread, between its exits from the guest and its entries.
 *
 * Not kept: weights and limits of cgroups, core scheduling, and the placement of new tasks by load. Idle CPUs are
 * chosen by the kernel's default rule.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "kvm.h"
#include "policy.h"

char _license[] SEC("license") = "GPL";

#define false 0
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

struct cpumask { unsigned long bits[1]; } READ;
struct sched_ext_entity { u32 flags; u32 weight; u64 slice; u64 dsq_vtime; } READ;
struct task_struct {
	int pid;
	int nr_cpus_allowed;
	unsigned short migration_disabled;
	const struct cpumask *cpus_ptr;
	/* Not read: without a member of this type the kernel would not recognise the type. */
	struct cpumask cpus_mask;
	struct sched_ext_entity scx;
} READ;
struct scx_init_task_args;
struct scx_exit_task_args;
enum scx_exit_kind { SCX_EXIT_NONE };
struct scx_exit_info { enum scx_exit_kind kind; const char *reason; } READ;

/* The members that are set; libbpf finds the kernel's by these names. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*enable)(struct task_struct *p);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

struct bpf_iter_scx_dsq { u64 __opaque[6]; } __attribute__((aligned(8)));

extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
extern void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) __ksym;
extern bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;
extern bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 enq_flags) __ksym;
extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;

/* include/linux/sched/ext.h and kernel/sched/ext*.h of the kernel. */
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_DSQ_LOCAL_ON 0xC000000000000000ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_HEAD (1ULL << 16)
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_DEQ_SLEEP 1ULL
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1U

/* BPF_F_TIMER_ABS (since 6.2), and constants of headers that conflict with these. */
#define TIMER_ABSOLUTE 1
#define CLOCK_MONOTONIC 1
#define EBUSY 16

/* The iterator of bpf_for_each(). */
#define ITERATOR (&___it)

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
#define MOST_VCPUS 1024
#define MOST_VMS 256

/*
 * Set before it is loaded: how many CPUs and queues there are, whether it may write into a process's memory, and the queue
 * of each CPU. The kernel does not look at what cannot be reached by these.
 */
const volatile struct {
	u32 cpus, queues, writes;
	u32 queue_of[MOST_CPUS];
} host SEC(".rodata.host") = {};

/* Read by user space. */
struct {
	/* Interrupts for admitted vCPUs, and those whose vCPU was boosted then, before or because of it. */
	u64 interrupts, boosted;
	/* Exit code of the scheduler; 0 while it runs. */
	u64 ended;
	char reason[128];
} totals SEC(".data.totals") = {};

/*
 * The page of a vCPU, as in layout.rs of the ABI: where the guest's words and the host's begin in their pages, and those
 * that are read and written at once.
 */
#define PAGE_BYTES 4096
#define GUEST_WORDS 64
#define HOST_WORDS 64
struct guest_words { u64 intent, cs, request, ack, deadline_tsc; };
struct host_words { u64 status, ticket, budget_left; };

/* A deadline that is 2^40 ticks or more away, some minutes, is ignored. */
#define MOST_TICKS 40

/* An admitted vCPU. User space reads the first part. */
struct vcpu {
	/* Deadlines that its guest had announced, for which it was boosted. */
	u64 deadlines;
	struct policy policy;
	/* Its place in the map. */
	u64 place;
	/* Its thread; 0: none. */
	u64 tid;
	/* Its VM. */
	u64 vm;
	/* The CPU that it runs on, or ran on last. */
	u64 cpu;
	u64 runs;
	/* Since when it has waited for a CPU. */
	u64 waits;
	/* Virtual time that it owes. */
	u64 debt;
	/* The event of an interrupt that it got while it ran, unless it has since entered the guest with all of them; or 0. */
	u64 untaken;
	/* Address in its VMM of its guest's page, which the host's follows; 0: none. */
	u64 page;
	/* Last words from its guest, and last words to it. */
	struct words words;
	struct host_words shown;
	/* The guest's clock: its TSC at a time, and ticks in a millisecond; 0: not known. */
	u64 left_at;
	u64 clock_ns;
	u64 clock_tsc;
	u64 khz;
	/* What the guest announced last, and the last one for which it was boosted. */
	u64 deadline_tsc;
	u64 served_tsc;
	/* How early it is boosted for a deadline, and when for that of one that does not run; or NEVER. */
	u64 lead;
	u64 due;
	/* The words are to be looked at again. */
	u64 rechecks;
	/* When its timer fires; NEVER: it is not set. */
	u64 rings;
	/* Something has happened to it since that last rang. */
	u64 told;
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_VCPUS);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

/* State that the vCPUs of a VM share. The lock protects their state, too. */
struct vm {
	struct bpf_spin_lock lock;
	struct bucket bucket;
	/* The policy's time never goes back. */
	u64 called;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_VMS);
	__type(key, u32);
	__type(value, struct vm);
} vms SEC(".maps");

/* Place in `vcpus`, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_VCPUS);
	__type(key, u32);
	__type(value, u32);
} threads SEC(".maps");

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

static struct vcpu *vcpu_of(u32 tid)
{
	u32 *place = bpf_map_lookup_elem(&threads, &tid);

	return place ? bpf_map_lookup_elem(&vcpus, place) : 0;
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
static u64 bounded(struct vcpu *v, u64 vtime, u64 reached)
{
	if (before(vtime, reached - SLICE))
		return reached - SLICE;
	if (!before(reached + MOST_LEAD, vtime))
		return vtime;
	if (v)
		v->debt = lesser(v->debt + vtime - reached - MOST_LEAD, MOST_DEBT);
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

static bool is_boosted(const struct vcpu *v)
{
	return v && v->policy.status == BOOSTED;
}

/*
 * Reads the words of the guest of the current thread; zero if they cannot be read. If the VMM has something else at that
 * address, only its own VM is affected.
 */
static void listen(struct vcpu *v)
{
	struct guest_words words = {};

	if (!v->page || (u32)bpf_get_current_pid_tgid() != v->tid)
		return;
	if (bpf_probe_read_user(&words, sizeof(words), (void *)(v->page + GUEST_WORDS)))
		__builtin_memset(&words, 0, sizeof(words));
	v->words = (struct words){ words.intent, words.cs, words.request, words.ack };
	v->deadline_tsc = words.deadline_tsc;
}

/* Writes the host's words for the guest of the current thread, if they have changed. */
static void show(struct vcpu *v)
{
	struct host_words words = { v->policy.status, v->policy.ticket, level(&v->policy.bucket) };

	if (!host.writes)
		return;
	if (v->shown.status == words.status && v->shown.ticket == words.ticket)
		return;
	if (!bpf_probe_write_user((void *)(v->page + PAGE_BYTES + HOST_WORDS), &words, sizeof(words)))
		v->shown = words;
}

/* When the guest's deadline becomes a reason for a boost; NEVER: there is no such deadline. */
static u64 deadline(const struct vcpu *v, u64 now)
{
	u64 ahead = beyond(v->deadline_tsc, v->clock_tsc), behind = beyond(v->clock_tsc, v->deadline_tsc), at;

	if (!v->page || !v->deadline_tsc || !v->khz || (ahead | behind) >> MOST_TICKS)
		return NEVER;
	at = v->clock_ns + ahead * PER_MILLION / v->khz - behind * PER_MILLION / v->khz;
	return boost_from(at, v->deadline_tsc == v->served_tsc, now, budget_left(&v->policy, now), v->lead);
}

/*
 * The policy of a place is told. Whether the vCPU is boosted then. Not static, and of numbers only: so the kernel
 * verifies the rules once, and not anew for each call.
 *
 * A timer is started where it would ring too late only. With interrupts off, as in the scheduler's calls, the kernel
 * cannot start one at once: that takes memory and an interrupt of its own. In the timer's own call it is cheap.
 */
__attribute__((noinline)) int tell(u32 place, u32 event)
{
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &place);
	u64 now = bpf_ktime_get_ns();
	struct vm *vm;
	bool starts;
	struct outcome outcome;
	u32 key;
	u64 at;

	if (!v)
		return 0;
	key = v->vm;
	vm = bpf_map_lookup_elem(&vms, &key);
	if (!vm)
		return 0;
	bpf_spin_lock(&vm->lock);
	vm->called = greater(vm->called, now);
	outcome = on_event(&v->policy, &vm->bucket, vm->called, event, &v->words);
	v->rechecks = event == TIMER && outcome.rechecks;
	/* One that sleeps boosted has what it needs. */
	at = lesser(v->policy.timer, v->policy.halted && is_boosted(v) ? NEVER : v->due);
	if (event == TIMER) {
		v->rings = NEVER;
		/* Who is busy will want it again. `dynamic` itself leaves its timer as it is. */
		if (v->told && !v->policy.rules.is_dynamic)
			at = lesser(at, plus(vm->called, v->policy.rules.run));
		v->told = 0;
	} else {
		v->told = 1;
	}
	/* A timer that is long overdue has been lost. */
	starts = at < v->rings || plus(v->rings, LOST_TIMER) < now;
	if (starts)
		v->rings = at;
	bpf_spin_unlock(&vm->lock);
	/* If it cannot be started, the next event tries again. */
	if (starts && at != NEVER && bpf_timer_start(&v->timer, at, TIMER_ABSOLUTE))
		v->rings = NEVER;
	return is_boosted(v);
}

/*
 * A vCPU has got a CPU that it may have waited for, as behind another one that is boosted: its boost has kept nobody from a CPU
 * meanwhile, and is not charged. What was charged in the wait stays so.
 */
static void spare_wait(struct vcpu *v, u64 now)
{
	u32 key = v->vm;
	struct vm *vm = bpf_map_lookup_elem(&vms, &key);

	if (!vm || !v->waits)
		return;
	bpf_spin_lock(&vm->lock);
	if (v->policy.charging)
		v->policy.since += beyond(now, greater(v->policy.since, v->waits));
	bpf_spin_unlock(&vm->lock);
	v->waits = 0;
}

/*
 * For a vCPU that runs or waits for a CPU. The timer of a boosted one may not have been started, or be late: what was due is
 * done where its boost would matter. One that woke up while it was admitted as asleep has told nobody, and would be boosted
 * without a charge until it sleeps again.
 */
static void do_what_is_due(struct vcpu *v)
{
	if (v->policy.halted)
		tell(v->place, WOKEN);
	if (is_boosted(v) && v->policy.timer <= bpf_ktime_get_ns())
		tell(v->place, TIMER);
}

/* A reason to boost a vCPU that may wait for a CPU: if it is boosted, it is fetched. Returns whether it is boosted. */
static bool call(struct vcpu *v, u32 event)
{
	bool was = is_boosted(v);
	struct cpu *state = cpu_state(v->cpu);

	if (!tell(v->place, event))
		return 0;
	if (!was && !v->runs && !v->policy.halted && state) {
		state->fetches = 1;
		scx_bpf_kick_cpu(v->cpu, SCX_KICK_PREEMPT);
	}
	return 1;
}

/*
 * The guest's deadline is near: that is an interrupt to its policy. It is one again if something else has ended the boost
 * that was given for it.
 */
static void serve(struct vcpu *v, bool waits)
{
	bool again = v->served_tsc == v->deadline_tsc;

	v->served_tsc = v->deadline_tsc;
	if (again && is_boosted(v))
		return;
	if (waits ? call(v, INJECTED) : tell(v->place, INJECTED))
		v->deadlines += !again;
}

/*
 * A vCPU loses its CPU, is about to, or sleeps: its guest may have become busy with something urgent since it entered,
 * have a deadline that is near, or not have taken an interrupt. Whether it is boosted.
 */
static bool look_at_guest(struct vcpu *v, u32 event)
{
	u64 now = bpf_ktime_get_ns(), from;

	listen(v);
	from = deadline(v, now);
	v->due = from > now && !v->runs ? from : NEVER;
	tell(v->place, event);
	if (from <= now && !(v->policy.halted && is_boosted(v)))
		serve(v, 0);
	return is_boosted(v);
}

/* The boost of a running vCPU may have ended: checks whether another thread should run now. */
static void yields(struct vcpu *v)
{
	struct cpu *state = cpu_state(v->cpu);

	if (!state)
		return;
	state->boosted = 0;
	if (v->rechecks || scx_bpf_dsq_nr_queued(queue(v->cpu)) > 0)
		scx_bpf_kick_cpu(v->cpu, SCX_KICK_PREEMPT);
}

/* The timer of a vCPU: a run, a budget or a throttling ends, or the guest's deadline is near. */
static int timer_rings(void *map, u32 *key, struct vcpu *v)
{
	bool was = is_boosted(v), boosted;

	if (!v->runs && v->due <= bpf_ktime_get_ns()) {
		v->due = NEVER;
		if (!(v->policy.halted && was))
			serve(v, 1);
	}
	boosted = tell(v->place, TIMER);
	/* It preempted: what it last said is all that it has to say. Else it is made to exit, and looked at. */
	if (v->rechecks && !v->runs)
		tell(v->place, RECHECK);
	else if (v->runs && was && (v->rechecks || !boosted))
		yields(v);
	return 0;
}

SEC("struct_ops/vcoop_select_cpu")
s32 BPF_PROG(vcoop_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = 0;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE, 0);
	return cpu;
}

struct search { struct task_struct *p; u32 queue; s32 found; };

/* Called for each CPU by a helper's loop, of which the kernel verifies only one iteration. */
static long look_at_cpu(u64 cpu, struct search *search)
{
	struct cpu *state = cpu_state(cpu);
	bool fair = state && state->weight && !state->boosted && queue(cpu) == search->queue;

	if (!fair || !bpf_cpumask_test_cpu(cpu, search->p->cpus_ptr))
		return 0;
	search->found = cpu;
	return 1;
}

#define NOBODY -1

/*
 * A CPU that the thread may use and where a thread runs that it may preempt, its own if that is one; NOBODY: there is none.
 * On its own CPU nobody is known to run while it gives that up itself. Where it wakes up, somebody of a higher class has
 * that CPU then.
 */
static s32 cpu_to_preempt(struct task_struct *p, bool wakes)
{
	s32 own = scx_bpf_task_cpu(p), idle;
	struct cpu *state = cpu_state(own);
	bool waits = state && wakes && !state->weight;
	struct search search = { p, queue(own), waits ? NOBODY : own };

	if (!state || p->nr_cpus_allowed == 1 || p->migration_disabled || (!state->boosted && !waits))
		return own;
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0)
		return idle;
	bpf_loop(host.cpus, look_at_cpu, &search, 0);
	return search.found;
}

SEC("struct_ops/vcoop_enqueue")
void BPF_PROG(vcoop_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 of = queue(cpu);
	u64 *reached = bpf_map_lookup_elem(&queues, &of);
	struct cpu *state = cpu_state(cpu);
	struct vcpu *v = vcpu_of(p->pid);
	bool boosted;
	s32 to, idle;
	u64 vtime;

	if (!reached || !state)
		return;
	vtime = bounded(v, vtime_in(p, of, *reached), *reached);
	p->scx.dsq_vtime = vtime;
	boosted = is_boosted(v);
	to = boosted ? cpu_to_preempt(p, enq_flags & SCX_ENQ_WAKEUP) : NOBODY;
	if (to != NOBODY) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | to, SLICE, enq_flags | SCX_ENQ_HEAD | SCX_ENQ_PREEMPT);
		return;
	}
	/* A boosted thread goes to the first CPU of its queue that can take it. */
	scx_bpf_dsq_insert_vtime(p, of, SLICE, boosted ? *reached - SLICE : vtime, enq_flags);
	if (!(enq_flags & SCX_ENQ_WAKEUP)) {
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0)
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return;
	}
	if (state->weight && !state->boosted && before(vtime + SLICE / 2, current_vtime(state)))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* Fetches a boosted vCPU from a queue, for a CPU. */
static bool fetch(s32 cpu, u32 of)
{
	struct task_struct *p;
	bool found = false;

	bpf_for_each(scx_dsq, p, of, 0) {
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || !is_boosted(vcpu_of(p->pid)))
			continue;
		found = scx_bpf_dsq_move(ITERATOR, p, SCX_DSQ_LOCAL_ON | cpu, SCX_ENQ_HEAD);
		if (found)
			break;
	}
	return found;
}

/* Whether a thread in a queue has an earlier virtual time than `vtime`, and may use a CPU. */
static bool has_earlier(s32 cpu, u32 of, u64 vtime)
{
	struct task_struct *p;
	bool earlier = false;

	bpf_for_each(scx_dsq, p, of, 0) {
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		earlier = before(p->scx.dsq_vtime, vtime);
		break;
	}
	return earlier;
}

SEC("struct_ops/vcoop_dispatch")
void BPF_PROG(vcoop_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu *state = cpu_state(cpu);
	u32 of = queue(cpu), other;
	struct vcpu *v;

	if (!state)
		return;
	v = prev && prev->scx.flags & SCX_TASK_QUEUED ? vcpu_of(prev->pid) : 0;
	if (v) {
		do_what_is_due(v);
		state->boosted = v->page ? look_at_guest(v, EXIT) : is_boosted(v);
	}
	if (state->fetches) {
		state->fetches = 0;
		if (fetch(cpu, of))
			return;
	}
	if (prev && prev->scx.flags & SCX_TASK_QUEUED) {
		catch_up(state, of);
		if (is_boosted(v) || !has_earlier(cpu, of, current_vtime(state))) {
			prev->scx.slice = SLICE;
			return;
		}
	}
	if (scx_bpf_dsq_move_to_local(of))
		return;
	for (other = 0; other < MOST_QUEUES && other < host.queues; other++) {
		if (other != of && scx_bpf_dsq_move_to_local(other))
			return;
	}
	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		prev->scx.slice = SLICE;
}

SEC("struct_ops/vcoop_runnable")
void BPF_PROG(vcoop_runnable, struct task_struct *p, u64 enq_flags)
{
	struct vcpu *v = vcpu_of(p->pid);

	if (!v)
		return;
	if (enq_flags & SCX_ENQ_WAKEUP)
		tell(v->place, WOKEN);
	v->waits = bpf_ktime_get_ns();
}

SEC("struct_ops/vcoop_quiescent")
void BPF_PROG(vcoop_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct vcpu *v = vcpu_of(p->pid);

	if (v && deq_flags & SCX_DEQ_SLEEP)
		look_at_guest(v, HALTED);
}

SEC("struct_ops/vcoop_running")
void BPF_PROG(vcoop_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 of = queue(cpu);
	struct cpu *state = cpu_state(cpu);
	u64 *reached = bpf_map_lookup_elem(&queues, &of);
	struct vcpu *v = vcpu_of(p->pid);

	if (!state || !reached)
		return;
	/* A thread that was given an idle CPU has not been in a queue. */
	state->vtime = bounded(v, vtime_in(p, of, *reached), *reached);
	state->since = bpf_ktime_get_ns();
	state->weight = p->scx.weight ? p->scx.weight : WEIGHT;
	state->boosted = is_boosted(v);
	/* A boosted thread may be far ahead of its turn, and does not advance the queue's time. */
	if (!state->boosted && before(*reached, state->vtime))
		*reached = state->vtime;
	if (v) {
		spare_wait(v, state->since);
		v->cpu = cpu;
		v->runs = 1;
		v->due = NEVER;
	}
}

SEC("struct_ops/vcoop_stopping")
void BPF_PROG(vcoop_stopping, struct task_struct *p, bool runnable)
{
	struct cpu *state = cpu_state(scx_bpf_task_cpu(p));
	struct vcpu *v = vcpu_of(p->pid);
	u64 paid;

	if (!state)
		return;
	p->scx.dsq_vtime = current_vtime(state);
	if (v && !state->boosted) {
		paid = lesser(v->debt, PAID * beyond(p->scx.dsq_vtime, state->vtime));
		p->scx.dsq_vtime += paid;
		v->debt -= paid;
	}
	state->boosted = 0;
	state->weight = 0;
	if (!v)
		return;
	v->runs = 0;
	v->waits = runnable ? bpf_ktime_get_ns() : 0;
	if (runnable)
		do_what_is_due(v);
	if (v->page && runnable)
		look_at_guest(v, EXIT);
	/* Preempted with an interrupt that it has not taken: it comes back for it. */
	if (v->untaken && runnable && tell(v->place, v->untaken))
		__sync_fetch_and_add(&totals.boosted, 1);
	if (!runnable)
		v->untaken = 0;
}

SEC("struct_ops/vcoop_enable")
void BPF_PROG(vcoop_enable, struct task_struct *p)
{
	u32 of = queue(scx_bpf_task_cpu(p));
	u64 *reached = bpf_map_lookup_elem(&queues, &of);

	if (!reached)
		return;
	vtime_in(p, of, *reached);
	p->scx.dsq_vtime = *reached;
}

SEC("struct_ops/vcoop_exit_task")
void BPF_PROG(vcoop_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	u32 tid = p->pid;
	struct vcpu *v = vcpu_of(tid);

	if (!v)
		return;
	tell(v->place, LEFT);
	bpf_map_delete_elem(&threads, &tid);
}

/* They are here because without them the kernel unloads a scheduler when a CPU comes or goes. Any CPU takes from any queue. */
SEC("struct_ops/vcoop_cpu_online")
void BPF_PROG(vcoop_cpu_online, s32 cpu) {}

SEC("struct_ops/vcoop_cpu_offline")
void BPF_PROG(vcoop_cpu_offline, s32 cpu) {}

SEC("struct_ops.s/vcoop_init")
s32 BPF_PROG(vcoop_init)
{
	s32 failed = 0;
	u32 of;

	for (of = 0; of < MOST_QUEUES && of < host.queues; of++) {
		failed = scx_bpf_create_dsq(of, -1);
		if (failed)
			break;
	}
	return failed;
}

SEC("struct_ops/vcoop_exit")
void BPF_PROG(vcoop_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(totals.reason, sizeof(totals.reason), info->reason);
	totals.ended = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops vcoop_ops = {
	.select_cpu = (void *)vcoop_select_cpu,
	.enqueue = (void *)vcoop_enqueue,
	.dispatch = (void *)vcoop_dispatch,
	.runnable = (void *)vcoop_runnable,
	.running = (void *)vcoop_running,
	.stopping = (void *)vcoop_stopping,
	.quiescent = (void *)vcoop_quiescent,
	.enable = (void *)vcoop_enable,
	.exit_task = (void *)vcoop_exit_task,
	.cpu_online = (void *)vcoop_cpu_online,
	.cpu_offline = (void *)vcoop_cpu_offline,
	.init = (void *)vcoop_init,
	.exit = (void *)vcoop_exit,
	.timeout_ms = 5000,
	.name = "vcoop",
};

/*
 * An interrupt for a vCPU. One that was preempted is fetched; one that runs takes it when it next enters the guest. An IPI
 * that comes here is one whose sender asks: it has made an exit for it.
 */
static void injected(struct kvm_vcpu *kvm, const struct vcpu *sender)
{
	struct vcpu *v = vcpu_of(kvm->pid->numbers[0].nr);
	u32 event = INJECTED;

	if (!v)
		return;
	if (v->policy.rules.on_asking && sender && sender != v && sender->vm == v->vm)
		event = ASKED;
	else if (!v->policy.rules.on_injection)
		return;
	__sync_fetch_and_add(&totals.interrupts, 1);
	if (!kvm->preempted)
		v->untaken = event;
	else if (call(v, event))
		__sync_fetch_and_add(&totals.boosted, 1);
}

/* KVM's own timer expires, in the host's timer interrupt. */
SEC("fentry/apic_timer_expired")
int BPF_PROG(timer_expired, struct kvm_lapic *apic)
{
	injected(apic->vcpu, 0);
	return 0;
}

/* Any interrupt is given to a vCPU's APIC, in the context of its sender. */
SEC("fentry/__apic_accept_irq")
int BPF_PROG(accept_irq, struct kvm_lapic *apic)
{
	injected(apic->vcpu, vcpu_of((u32)bpf_get_current_pid_tgid()));
	return 0;
}

/* The vCPU leaves the guest. KVM reads the guest's clock next, unless it lets it in again at once. */
SEC("tp_btf/kvm_exit")
int BPF_PROG(left)
{
	struct vcpu *v = vcpu_of((u32)bpf_get_current_pid_tgid());

	if (v)
		v->left_at = bpf_ktime_get_ns();
	return 0;
}

/* Whether a vCPU that enters its guest has interrupts that the guest cannot take now, because it has disabled them. */
static bool is_owed(const struct kvm_vcpu *kvm)
{
	const struct kvm_lapic *apic = kvm->arch.apic;

	/* A virtual APIC in hardware delivers them itself, and the flag has no meaning. */
	return apic && bpf_core_field_exists(apic->apicv_active) && !apic->apicv_active && apic->irr_pending;
}

/*
 * The vCPU enters the guest, with what it was given. What its guest said before it left is looked at here and not
 * when it leaves, because one that halts does not come here.
 */
SEC("tp_btf/kvm_entry")
int BPF_PROG(entered, struct kvm_vcpu *kvm)
{
	struct vcpu *v = vcpu_of((u32)bpf_get_current_pid_tgid());
	struct cpu *state;
	bool was;

	if (!v)
		return 0;
	if (!kvm)
		return 0;
	if (v->untaken && !is_owed(kvm))
		v->untaken = 0;
	if (!v->page)
		return 0;
	/* One that KVM has let in again at once has left more than once since KVM read its clock. */
	if (v->clock_tsc != kvm->arch.last_guest_tsc) {
		v->clock_ns = v->left_at;
		v->clock_tsc = kvm->arch.last_guest_tsc;
	}
	v->khz = kvm->arch.virtual_tsc_khz;
	was = is_boosted(v);
	listen(v);
	if (tell(v->place, EXIT)) {
		state = cpu_state(v->cpu);
		if (state)
			state->boosted = 1;
	} else if (was) {
		yields(v);
	}
	show(v);
	return 0;
}

/* Called by the loader: adds a VM with a budget. */
struct begin_vm { u64 vm, burst, refill_ppm; };

SEC("syscall")
int begin_vm(struct begin_vm *args)
{
	u32 key = args->vm;
	u64 burst = args->burst, refill_ppm = args->refill_ppm, now = bpf_ktime_get_ns();
	struct vm *vm = bpf_map_lookup_elem(&vms, &key);

	if (!vm)
		return -1;
	bpf_spin_lock(&vm->lock);
	vm->bucket = full_bucket(burst, refill_ppm, now);
	vm->called = now;
	bpf_spin_unlock(&vm->lock);
	return 0;
}

/* A vCPU is admitted: its policy begins. It is assumed to be awake. */
struct admit { u64 place, tid, vm, lead, burst, refill_ppm; struct rules rules; };

SEC("syscall")
int admit(struct admit *args)
{
	u32 place = args->place, tid = args->tid;
	int failed;
	struct rules rules;
	u64 now = bpf_ktime_get_ns();
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &place);

	if (!v)
		return -1;
	rules = args->rules;
	begin_policy(&v->policy, &rules, args->burst, args->refill_ppm, now);
	v->deadlines = 0;
	v->place = place;
	v->tid = tid;
	v->vm = args->vm;
	v->cpu = 0;
	v->runs = 0;
	v->waits = 0;
	v->debt = 0;
	v->untaken = 0;
	v->page = 0;
	v->khz = 0;
	v->lead = args->lead;
	v->due = NEVER;
	v->rechecks = 0;
	v->rings = NEVER;
	v->told = 0;
	failed = bpf_timer_init(&v->timer, &vcpus, CLOCK_MONOTONIC);
	/* It exists already if another vCPU had this place before. */
	if (failed && failed != -EBUSY)
		return failed;
	failed = bpf_timer_set_callback(&v->timer, timer_rings);
	if (failed)
		return failed;
	tell(v->place, ATTACHED);
	return bpf_map_update_elem(&threads, &tid, &place, BPF_ANY);
}

/* Called by the loader: a vCPU sleeps or is awake, its guest has a driver or no longer has one, or its policy ends. */
struct note { u64 place, event, page; };

SEC("syscall")
int note(struct note *args)
{
	u32 place = args->place, tid;
	struct vcpu *v = bpf_map_lookup_elem(&vcpus, &place);

	if (!v)
		return -1;
	tid = v->tid;
	switch (args->event) {
	case HALTED:
		tell(v->place, HALTED);
		break;
	case REGISTERED:
	case UNREGISTERED:
		tell(v->place, args->event);
		v->shown = (struct host_words){ NEVER };
		v->served_tsc = 0;
		v->page = args->page;
		break;
	case LEFT:
		bpf_map_delete_elem(&threads, &tid);
		tell(v->place, LEFT);
		bpf_timer_cancel(&v->timer);
		v->tid = 0;
		break;
	}
	return 0;
}
