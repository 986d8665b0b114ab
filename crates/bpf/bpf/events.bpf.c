// SPDX-License-Identifier: GPL-2.0
/*
 * Reports threads that go to sleep, and interrupts for vCPUs before these run again: thread, kind and time. Only events of
 * threads in the map are reported, and of these only the wanted ones.
 */
#include "kvm.h"

struct task_struct { int pid; } READ;

char _license[] SEC("license") = "GPL";

/* As in events/bpf.rs of this crate. */
enum what { TIMER, DEVICE, IPI, NMI, SLEEPS };
/*
 * `lost`: events so far for which the ring had no room. `coalesced`: interrupts of the thread since the last reported one
 * that were not reported.
 */
struct event { __u64 at; __u32 tid; __u32 what; __u64 coalesced; __u64 lost; };

/* Events that are wanted of a thread, as in the same file. */
#define WANTS_SLEEPS 1
#define WANTS_INTERRUPTS 2

/* Delivery modes of the APIC, as in the ICR. */
#define DELIVERY_MODE 0x700
#define DELIVERS_NMI 0x400

/* TASK_INTERRUPTIBLE, with or without other flags: an idle vCPU, or a thread that waits for one. */
#define ASLEEP 1

#define MOST_THREADS 16384

/* Minimum time in ns between two reported interrupts of a vCPU, unless it has run between them. */
#define APART 100000

/* Events that are wanted, by thread id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_THREADS);
	__type(key, __u32);
	__type(value, __u32);
} threads SEC(".maps");

/* State of a thread, by its id. */
struct state {
	__u32 asleep;
	/* Its interrupts not reported since the last reported one, and the time of that; 0: none since it ran. */
	__u32 coalesced;
	__u64 told;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_THREADS);
	__type(key, __u32);
	__type(value, struct state);
} states SEC(".maps");

/* Threads of vCPUs by process and APIC id: KVM's tracepoint gives no more. */
struct apic { __u32 process, id; };
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_THREADS);
	__type(key, struct apic);
	__type(value, __u32);
} apics SEC(".maps");

/* Kind of the last interrupt that a running vCPU was given and has not taken, by its thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_THREADS);
	__type(key, __u32);
	__type(value, __u32);
} untaken SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} ring SEC(".maps");

__u64 lost = 0;

static bool tell(__u32 tid, __u32 what, __u64 at, __u64 coalesced)
{
	struct event *event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	event->at = at;
	event->tid = tid;
	event->what = what;
	event->coalesced = coalesced;
	event->lost = lost;
	bpf_ringbuf_submit(event, 0);
	return 1;
}

/*
 * A vCPU has an interrupt. Later ones since it ran can be the reason for the same boost as the first: some of them are
 * reported, because the first may have come while there was no budget. A sender cannot keep the receiver of events busy.
 */
static void tell_interrupt(__u32 tid, __u32 kind)
{
	struct state *state = bpf_map_lookup_elem(&states, &tid);
	__u64 now = bpf_ktime_get_ns();
	__u32 coalesced;

	/* Its entry is being deleted. */
	if (!state)
		return;
	if (state->told && now - state->told < APART) {
		__sync_fetch_and_add(&state->coalesced, 1);
		return;
	}
	state->told = now;
	coalesced = state->coalesced;
	if (tell(tid, kind, now, coalesced))
		__sync_fetch_and_add(&state->coalesced, -coalesced);
}

/* A thread runs, or leaves its CPU. */
static void note(__u32 tid, __u32 asleep)
{
	struct state *state = bpf_map_lookup_elem(&states, &tid), fresh = { .asleep = asleep };

	if (state) {
		state->asleep = asleep;
		state->told = 0;
	} else {
		bpf_map_update_elem(&states, &tid, &fresh, BPF_ANY);
	}
}

static __u32 wanted(__u32 tid)
{
	__u32 *wants = bpf_map_lookup_elem(&threads, &tid);

	return wants ? *wants : 0;
}

/* The sender: a vCPU, or else a device. */
static __u32 sender(void)
{
	__u32 tid = bpf_get_current_pid_tgid();

	return wanted(tid) & WANTS_INTERRUPTS ? IPI : DEVICE;
}

/*
 * A preempted vCPU waits for its CPU. A running one takes the interrupt when it next enters the guest, unless it is
 * preempted before. A halted one is woken: its sleep was reported separately.
 */
static void of_vcpu(struct kvm_vcpu *vcpu, __u32 kind)
{
	__u32 tid = vcpu->pid->numbers[0].nr;

	if (!(wanted(tid) & WANTS_INTERRUPTS))
		return;
	if (vcpu->preempted)
		tell_interrupt(tid, kind);
	else
		bpf_map_update_elem(&untaken, &tid, &kind, BPF_ANY);
}

SEC("raw_tp/kvm_entry")
int entered(struct bpf_raw_tracepoint_args *context)
{
	__u32 tid = bpf_get_current_pid_tgid();

	if (bpf_map_lookup_elem(&untaken, &tid) && !is_owed((void *)context->args[0]))
		bpf_map_delete_elem(&untaken, &tid);
	return 0;
}

/* A thread is switched out: preempted, maybe with an interrupt that it has not taken, or to sleep. */
SEC("raw_tp/sched_switch")
int switched(struct bpf_raw_tracepoint_args *context)
{
	struct task_struct *next = (void *)context->args[2];
	__u32 in = BPF_CORE_READ(next, pid), out = bpf_get_current_pid_tgid();
	__u32 *kind;
	/* It remains runnable: it was preempted, or has yielded. */
	bool goes_on = context->args[0] || !context->args[3];

	if (bpf_map_lookup_elem(&threads, &in))
		note(in, 0);
	if (!bpf_map_lookup_elem(&threads, &out))
		return 0;
	kind = bpf_map_lookup_elem(&untaken, &out);
	if (kind && goes_on)
		tell_interrupt(out, *kind);
	else if (kind)
		bpf_map_delete_elem(&untaken, &out);
	if (!goes_on && context->args[3] & ASLEEP) {
		note(out, 1);
		/* Looked up after the state is stored: a new watcher sees the state or gets the event. */
		if (wanted(out) & WANTS_SLEEPS)
			tell(out, SLEEPS, bpf_ktime_get_ns(), 0);
	}
	return 0;
}

/* KVM's own timer expires, in the host's timer interrupt. */
SEC("fentry/apic_timer_expired")
int BPF_PROG(timer_expired, struct kvm_lapic *apic)
{
	of_vcpu(apic->vcpu, TIMER);
	return 0;
}

/* Any interrupt is given to a vCPU's APIC, in the context of its sender. */
SEC("fentry/__apic_accept_irq")
int BPF_PROG(accept_irq, struct kvm_lapic *apic, int mode)
{
	of_vcpu(apic->vcpu, (mode & DELIVERY_MODE) == DELIVERS_NMI ? NMI : sender());
	return 0;
}

/* The same without the vCPU, for kernels without fentry. A vCPU's own timer comes too late here: from itself. */
SEC("raw_tp/kvm_apic_accept_irq")
int accepted(struct bpf_raw_tracepoint_args *context)
{
	__u64 who = bpf_get_current_pid_tgid();
	struct apic apic = { who >> 32, context->args[0] };
	__u32 *tid = bpf_map_lookup_elem(&apics, &apic);

	if (tid && *tid != (__u32)who)
		tell_interrupt(*tid, (context->args[1] & DELIVERY_MODE) == DELIVERS_NMI ? NMI : sender());
	return 0;
}
