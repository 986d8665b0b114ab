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
#include "vcpu.h"

char _license[] SEC("license") = "GPL";

/* Read by user space. */
struct {
	/* Interrupts for admitted vCPUs, and those whose vCPU was boosted then, before or because of it. */
	u64 interrupts, boosted;
	/* Exit code of the scheduler; 0 while it runs. */
	u64 ended;
	char reason[128];
} totals SEC(".data.totals") = {};

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
	vtime = bounded(vtime_in(p, of, *reached), *reached, v ? &v->debt : 0);
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
	bool found = 0;

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
	bool earlier = 0;

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
	/* One that gives up the CPU does not go on. */
	if (prev && !(prev->scx.flags & SCX_TASK_QUEUED))
		prev = 0;
	v = prev ? vcpu_of(prev->pid) : 0;
	if (v) {
		do_what_is_due(v);
		state->boosted = v->page ? look_at_guest(v, EXIT) : is_boosted(v);
	}
	if (state->fetches) {
		state->fetches = 0;
		if (fetch(cpu, of))
			return;
	}
	if (prev) {
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
	if (prev)
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
	state->vtime = bounded(vtime_in(p, of, *reached), *reached, v ? &v->debt : 0);
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
	injected(apic->vcpu, current_vcpu());
	return 0;
}

/* The vCPU leaves the guest. KVM reads the guest's clock next, unless it lets it in again at once. */
SEC("tp_btf/kvm_exit")
int BPF_PROG(left)
{
	struct vcpu *v = current_vcpu();

	if (v)
		v->left_at = bpf_ktime_get_ns();
	return 0;
}

/*
 * The vCPU enters the guest, with what it was given. What its guest said before it left is looked at here and not
 * when it leaves, because one that halts does not come here.
 */
SEC("tp_btf/kvm_entry")
int BPF_PROG(entered, struct kvm_vcpu *kvm)
{
	struct vcpu *v = current_vcpu();
	struct cpu *state;
	bool was;

	if (!v || !kvm)
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
	/* All but the timer, which may exist. */
	__builtin_memset(v, 0, __builtin_offsetof(struct vcpu, timer));
	rules = args->rules;
	begin_policy(&v->policy, &rules, args->burst, args->refill_ppm, now);
	v->place = place;
	v->tid = tid;
	v->vm = args->vm;
	v->lead = args->lead;
	v->due = NEVER;
	v->rings = NEVER;
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
