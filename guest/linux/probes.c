// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's tracepoints, by name, and what each means for the guest half.
 *
 * Prototypes change also within stable series. Each hook is checked against the
 * headers of the kernel that it is built for; a hook whose prototype is not one
 * that is known here does not compile.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/hardirq.h>
#include <linux/interrupt.h>
#include <linux/tracepoint.h>
#if __has_include(<trace/events/csd.h>)
#include <trace/events/csd.h>
#endif
#include <trace/events/irq.h>
#include <trace/events/sched.h>
#include <trace/events/timer.h>
#include <asm/trace/irq_vectors.h>

#include "vcoop.h"

/* A wake-up that has not been told of for so long is no news any more. */
#define WAKING_NS NSEC_PER_MSEC

/* Whether the kernel says when it puts something on the list of another CPU: since 6.5. */
static bool sees_lists;

static void tell(struct vcoop_vcpu *vcpu, enum vcoop_event_kind kind)
{
	struct vcoop_event event = { .kind = kind };

	vcoop_vcpu_event(vcpu, &event);
}

/*
 * The declared task that waits on a CPU, behind fair ones. It is stored while the task cannot run:
 * with the lock of its queue held, or on its way from one to another.
 */
static void waits(unsigned int cpu, const struct task_struct *task, u16 word)
{
	if (word & VCOOP_TASK_DECLARED)
		WRITE_ONCE(per_cpu_ptr(&vcoop_vcpus, cpu)->waiting, (u64)task->pid << 16 | word);
}

/*
 * Whether a task that has not slept can be picked. A fair one cannot while the CPU quota of its group (cpu.max)
 * has run out: it is on no queue, or one of its groups is on none. Nobody says when it is again. With the lock of
 * the run queue held.
 */
static bool can_run(const struct task_struct *task, u16 word)
{
#ifdef CONFIG_FAIR_GROUP_SCHED
	const struct sched_entity *se;

	if (vcoop_task_class(word) != VCOOP_CLASS_FAIR)
		return true;
#ifdef CONFIG_SCHED_CLASS_EXT
	if (READ_ONCE(task->scx.flags) & SCX_TASK_QUEUED)
		return true;
#endif
	for (se = &task->se; se; se = se->parent)
		if (!READ_ONCE(se->on_rq))
			return false;
#endif
	return true;
}

/*
 * A task that this CPU has woken goes to another CPU's queue, and that CPU puts
 * it there: no event here says so. By now it is on its way.
 */
static void flush_waking(struct vcoop_vcpu *vcpu)
{
	pid_t pid = vcpu->waking.pid;

	if (likely(!pid))
		return;
	vcpu->waking.pid = 0;
	if (vcpu->waking.cpu != smp_processor_id() &&
	    rdtsc() - vcpu->waking.tsc < vcoop_ns_to_tsc(WAKING_NS))
		vcoop_vcpu_enqueue(vcpu->waking.cpu, vcpu->waking.task);
}

/*
 * What could not be told with a lock held is told when this interrupt ends, as with all others. It comes as
 * soon as interrupts are on.
 */
static void after_locks(struct irq_work *work)
{
}

#if __has_include(<trace/events/csd.h>)
/*
 * This CPU puts something on another one's list, such as a task that it has woken. That CPU may need no interrupt to look
 * at it: it waits in a loop or by MWAIT, or one is on its way since something was put there before.
 */
static void on_csd_queue_cpu(void *data, const unsigned int cpu, unsigned long callsite,
			     smp_call_func_t func, call_single_data_t *csd)
{
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	if (vcpu->waking.pid && vcpu->waking.cpu == cpu)
		flush_waking(vcpu);
	raw_local_irq_restore(flags);
}
#endif

static void irq_enter_hook(void)
{
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	tell(vcpu, VCOOP_IRQ_ENTER);
	vcoop_vcpu_remote(vcpu, true);
	raw_local_irq_restore(flags);
}

/*
 * With PREEMPT_RT softirqs run in threads: those of timers in ktimers, the others in ksoftirqd or in the thread of an
 * interrupt. They are preempted and wait for locks as other work does. So the thread's class says whether they are urgent.
 */
static void tell_softirq(struct vcoop_vcpu *vcpu, enum vcoop_event_kind kind)
{
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		tell(vcpu, kind);
}

/*
 * Softirqs run when the interrupt ends, unless it came in the middle of one, or of
 * a section without them.
 */
static bool softirqs_follow(void)
{
	return !IS_ENABLED(CONFIG_PREEMPT_RT) && !softirq_count() && local_softirq_pending();
}

static void irq_exit_hook(bool timer)
{
	struct vcoop_event event = { .kind = VCOOP_IRQ_EXIT };
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	flush_waking(vcpu);
	if (timer)
		vcoop_deadline_purge(vcpu, false);
	event.flag = softirqs_follow() || vcpu->wakes_thread;
	vcpu->wakes_thread = false;
	vcoop_vcpu_event(vcpu, &event);
	raw_local_irq_restore(flags);
}

static void on_irq_handler_entry(void *data, int irq, struct irqaction *action)
{
	irq_enter_hook();
}

/* The thread of an interrupt is woken after this. On another CPU, that CPU is told when it is. */
static void on_irq_handler_exit(void *data, int irq, struct irqaction *action, int ret)
{
	const struct task_struct *thread = ret & IRQ_WAKE_THREAD ? action->thread : NULL;

	if (thread && task_cpu(thread) == smp_processor_id() &&
	    vcoop_task_is_urgent(vcoop_task_word(thread)))
		this_cpu_write(vcoop_vcpus.wakes_thread, true);
	irq_exit_hook(false);
}

/* So is the thread of timers. */
static void on_softirq_raise(void *data, unsigned int number)
{
	if (in_hardirq() && (number == TIMER_SOFTIRQ || number == HRTIMER_SOFTIRQ))
		this_cpu_write(vcoop_vcpus.wakes_thread, true);
}

static void on_vector_entry(void *data, int vector)
{
	irq_enter_hook();
}

static void on_vector_exit(void *data, int vector)
{
	irq_exit_hook(false);
}

static void on_local_timer_exit(void *data, int vector)
{
	irq_exit_hook(true);
}

static void on_softirq_entry(void *data, unsigned int number)
{
	unsigned long flags;

	raw_local_irq_save(flags);
	tell_softirq(this_cpu_ptr(&vcoop_vcpus), VCOOP_SOFTIRQ_ENTER);
	raw_local_irq_restore(flags);
}

static void on_softirq_exit(void *data, unsigned int number)
{
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	flush_waking(vcpu);
	if (number == HRTIMER_SOFTIRQ)
		vcoop_deadline_purge(vcpu, true);
	tell_softirq(vcpu, VCOOP_SOFTIRQ_EXIT);
	raw_local_irq_restore(flags);
}

/* A task switches: no interrupt is being handled. What was missed of one is put right. */
static void resync(struct vcoop_vcpu *vcpu)
{
	while (unlikely(vcpu->half.cs >> VCOOP_CS_HARDIRQ_SHIFT & 0xff)) {
		vcpu->resynced++;
		tell(vcpu, VCOOP_IRQ_EXIT);
	}
	while (unlikely(vcpu->half.cs >> VCOOP_CS_SOFTIRQ_SHIFT & 0xff)) {
		vcpu->resynced++;
		tell(vcpu, VCOOP_SOFTIRQ_EXIT);
	}
}

/*
 * With the run queue's lock held, as are all wake-ups to it. Whom the switch passed over is
 * pending. A task of the RT classes waits behind a fair one only where the kernel rations RT tasks: it is
 * throttled, or since 6.12 a server of fair tasks has the CPU. It is not pending then.
 */
static void on_sched_switch(void *data, bool preempt, struct task_struct *prev,
			    struct task_struct *next, unsigned int prev_state)
{
	struct vcoop_event event = { .kind = VCOOP_TASK_SWITCH };
	struct vcoop_vcpu *vcpu;
	unsigned long flags;
	u16 word = VCOOP_TASK(VCOOP_CLASS_NONE, 0);
	u64 waiting;

	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	flush_waking(vcpu);
	resync(vcpu);
	vcoop_vcpu_remote(vcpu, false);
	if (is_idle_task(next)) {
		vcpu->waiting = 0;
		tell(vcpu, VCOOP_IDLE_ENTER);
		goto out;
	}
	event.task = vcoop_task_word(next);
	if ((preempt || !prev_state) && !is_idle_task(prev))
		word = vcoop_task_word(prev);
	if ((READ_ONCE(vcpu->waiting) || word & VCOOP_TASK_DECLARED) && !can_run(prev, word)) {
		/* Nor can who waits, as far as that is of the same group. */
		word = VCOOP_TASK(VCOOP_CLASS_NONE, 0);
		WRITE_ONCE(vcpu->waiting, 0);
	}
	waiting = READ_ONCE(vcpu->waiting);
	if (waiting >> 16 == next->pid) {
		WRITE_ONCE(vcpu->waiting, 0);
		waiting = 0;
	}
	event.pending = waiting;
	waits(smp_processor_id(), prev, word);
	if (vcoop_task_is_urgent(word) &&
	    ((word & VCOOP_TASK_DECLARED) || vcoop_task_is_urgent(event.task)) &&
	    vcoop_task_urgency(word) > vcoop_task_urgency(event.pending))
		event.pending = word;
	event.flag = event.pending;
	if (vcoop_task_is_urgent(event.task))
		vcoop_latency_ran(vcpu, next);
	vcoop_vcpu_event(vcpu, &event);
out:
	if (!is_idle_task(prev) && prev_state && !preempt)
		vcoop_latency_forget(prev);
	raw_local_irq_restore(flags);
}

static void on_sched_waking(void *data, struct task_struct *task)
{
	u16 word = vcoop_task_word(task);
	struct vcoop_vcpu *vcpu;
	unsigned long flags;
	u64 due;

	if (!vcoop_task_is_urgent(word))
		return;
	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	flush_waking(vcpu);
	due = vcoop_timer_due(vcpu);
	if (due)
		vcoop_latency_due(task, due);
	if (task != current) {
		vcpu->waking.pid = task->pid;
		vcpu->waking.cpu = task_cpu(task);
		vcpu->waking.task = word;
		vcpu->waking.tsc = rdtsc();
		/*
		 * Where the kernel does not say that it puts the task on a list, it is there as soon as this one
		 * can be interrupted. In an interrupt, its end comes soon.
		 */
		if (!sees_lists && in_task() && vcpu->waking.cpu != smp_processor_id())
			irq_work_queue(&vcpu->after_locks);
	}
	raw_local_irq_restore(flags);
}

/* The task is on a queue, on the CPU that it will run on. */
static void on_sched_wakeup(void *data, struct task_struct *task)
{
	u16 word = vcoop_task_word(task);
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	if (!vcoop_task_is_urgent(word))
		return;
	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	if (vcpu->waking.pid == task->pid)
		vcpu->waking.pid = 0;
	/* One that runs still has not slept. */
	if (!READ_ONCE(task->on_cpu) && (!(word & VCOOP_TASK_DECLARED) || can_run(task, word))) {
		waits(task_cpu(task), task, word);
		vcoop_vcpu_enqueue(task_cpu(task), word);
	}
	raw_local_irq_restore(flags);
}

static void on_sched_migrate_task(void *data, struct task_struct *task, int cpu)
{
	u16 word = vcoop_task_word(task);
	struct vcoop_vcpu *from;
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	if (!vcoop_task_is_urgent(word))
		return;
	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	from = per_cpu_ptr(&vcoop_vcpus, task_cpu(task));
	if (READ_ONCE(from->waiting) >> 16 == task->pid)
		WRITE_ONCE(from->waiting, 0);
	if (vcpu->waking.pid == task->pid) {
		vcpu->waking.cpu = cpu;
	} else if (READ_ONCE(task->on_rq)) {
		waits(cpu, task, word);
		vcoop_vcpu_enqueue(cpu, word);
	}
	raw_local_irq_restore(flags);
}

/*
 * A task gets the priority of one that waits for its lock, or loses it: none waits any more. The lock of its run queue
 * is held, and it has the old priority still. Another CPU's task that loses it is told of when that CPU switches.
 */
static void on_sched_pi_setprio(void *data, struct task_struct *task, struct task_struct *waits_for_it)
{
	u16 old = vcoop_task_word(task);
	u16 word = vcoop_task_word_at(task, waits_for_it ? min(waits_for_it->prio, task->normal_prio) :
							   task->normal_prio);
	struct vcoop_event event = { .kind = VCOOP_TASK_SWITCH, .task = word };
	struct vcoop_vcpu *vcpu;
	unsigned long flags;

	raw_local_irq_save(flags);
	vcpu = this_cpu_ptr(&vcoop_vcpus);
	if (task == current) {
		/* Those who gave it the priority may have put it here as pending. */
		vcoop_vcpu_remote(vcpu, true);
		event.pending = vcpu->half.intent >> VCOOP_INTENT_PENDING_SHIFT;
		event.flag = (vcpu->half.intent & VCOOP_INTENT_PENDING_VALID) && event.pending != old;
		vcoop_vcpu_event(vcpu, &event);
	} else if (READ_ONCE(task->on_rq) && vcoop_task_is_urgent(word)) {
		vcoop_vcpu_enqueue(task_cpu(task), word);
	}
	raw_local_irq_restore(flags);
}

static __always_inline void of_timer(void (*tell_of)(struct hrtimer *), struct hrtimer *timer)
{
	unsigned long flags;

	raw_local_irq_save(flags);
	tell_of(timer);
	raw_local_irq_restore(flags);
}

static void __maybe_unused on_hrtimer_start_3(void *data, struct hrtimer *timer,
					      enum hrtimer_mode mode, bool was_armed)
{
	of_timer(vcoop_timer_start, timer);
}

static void __maybe_unused on_hrtimer_start_2(void *data, struct hrtimer *timer,
					      enum hrtimer_mode mode)
{
	of_timer(vcoop_timer_start, timer);
}

static void on_hrtimer_cancel(void *data, struct hrtimer *timer)
{
	of_timer(vcoop_timer_cancel, timer);
}

static void __maybe_unused on_hrtimer_expire_entry_pointer(void *data, struct hrtimer *timer,
							   ktime_t *now)
{
	of_timer(vcoop_timer_expire, timer);
}

static void __maybe_unused on_hrtimer_expire_entry_value(void *data, struct hrtimer *timer,
							 ktime_t now)
{
	of_timer(vcoop_timer_expire, timer);
}

static void on_hrtimer_expire_exit(void *data, struct hrtimer *timer)
{
	of_timer(vcoop_timer_expired, timer);
}

/* Whether the kernel calls the hooks of a tracepoint with these arguments. */
#define HAS_ARGUMENTS(name, ...)					\
	__builtin_types_compatible_p(typeof(check_trace_callback_type_##name), \
				     void(void (*)(void *, __VA_ARGS__)))

#define HRTIMER_START							\
	__builtin_choose_expr(						\
		HAS_ARGUMENTS(hrtimer_start, struct hrtimer *, enum hrtimer_mode), \
		on_hrtimer_start_2, on_hrtimer_start_3)
#define HRTIMER_EXPIRE_ENTRY						\
	__builtin_choose_expr(						\
		HAS_ARGUMENTS(hrtimer_expire_entry, struct hrtimer *, ktime_t), \
		on_hrtimer_expire_entry_value, on_hrtimer_expire_entry_pointer)

static void __maybe_unused check_arguments(void)
{
	check_trace_callback_type_irq_handler_entry(on_irq_handler_entry);
	check_trace_callback_type_irq_handler_exit(on_irq_handler_exit);
	check_trace_callback_type_softirq_entry(on_softirq_entry);
	check_trace_callback_type_softirq_exit(on_softirq_exit);
	check_trace_callback_type_sched_switch(on_sched_switch);
	check_trace_callback_type_sched_waking(on_sched_waking);
	check_trace_callback_type_sched_wakeup(on_sched_wakeup);
	check_trace_callback_type_sched_wakeup_new(on_sched_wakeup);
	check_trace_callback_type_sched_migrate_task(on_sched_migrate_task);
	check_trace_callback_type_sched_pi_setprio(on_sched_pi_setprio);
	check_trace_callback_type_softirq_raise(on_softirq_raise);
	check_trace_callback_type_hrtimer_start(HRTIMER_START);
	check_trace_callback_type_hrtimer_cancel(on_hrtimer_cancel);
	check_trace_callback_type_hrtimer_expire_entry(HRTIMER_EXPIRE_ENTRY);
	check_trace_callback_type_hrtimer_expire_exit(on_hrtimer_expire_exit);
#if __has_include(<trace/events/csd.h>)
	check_trace_callback_type_csd_queue_cpu(on_csd_queue_cpu);
#endif
	/* All vectors are of one class. */
	check_trace_callback_type_local_timer_entry(on_vector_entry);
	check_trace_callback_type_local_timer_exit(on_local_timer_exit);
}

struct probe {
	const char *name;
	void *hook;
	bool optional;
	bool attached;
	struct tracepoint *tracepoint;
};

#define NEEDED(name, hook) { #name, hook }
#define OPTIONAL(name, hook) { #name, hook, .optional = true }
/* The exit first: an interrupt that is seen to begin must be seen to end. */
#define VECTOR(name) OPTIONAL(name##_exit, on_vector_exit), OPTIONAL(name##_entry, on_vector_entry)

static struct probe probes[] = {
	NEEDED(sched_switch, on_sched_switch),
	NEEDED(sched_waking, on_sched_waking),
	NEEDED(sched_wakeup, on_sched_wakeup),
	NEEDED(sched_wakeup_new, on_sched_wakeup),
	OPTIONAL(sched_migrate_task, on_sched_migrate_task),
	OPTIONAL(sched_pi_setprio, on_sched_pi_setprio),
#if __has_include(<trace/events/csd.h>)
	OPTIONAL(csd_queue_cpu, on_csd_queue_cpu),
#endif
	NEEDED(irq_handler_exit, on_irq_handler_exit),
	NEEDED(irq_handler_entry, on_irq_handler_entry),
	NEEDED(local_timer_exit, on_local_timer_exit),
	NEEDED(local_timer_entry, on_vector_entry),
	NEEDED(irq_work_exit, on_vector_exit),
	NEEDED(irq_work_entry, on_vector_entry),
	VECTOR(reschedule),
	VECTOR(call_function),
	VECTOR(call_function_single),
	VECTOR(x86_platform_ipi),
	NEEDED(softirq_exit, on_softirq_exit),
	NEEDED(softirq_entry, on_softirq_entry),
#ifdef CONFIG_PREEMPT_RT
	OPTIONAL(softirq_raise, on_softirq_raise),
#endif
	NEEDED(hrtimer_start, HRTIMER_START),
	NEEDED(hrtimer_cancel, on_hrtimer_cancel),
	NEEDED(hrtimer_expire_entry, HRTIMER_EXPIRE_ENTRY),
	NEEDED(hrtimer_expire_exit, on_hrtimer_expire_exit),
};

static void find_tracepoint(struct tracepoint *tracepoint, void *data)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (!strcmp(tracepoint->name, probes[i].name))
			probes[i].tracepoint = tracepoint;
}

int vcoop_probes_attach(void)
{
	unsigned int cpu;
	int i, err;

	/* Not initialized statically: a module's per-CPU data is not relocated. */
	for_each_possible_cpu(cpu)
		per_cpu_ptr(&vcoop_vcpus, cpu)->after_locks = IRQ_WORK_INIT_HARD(after_locks);
	for_each_kernel_tracepoint(find_tracepoint, NULL);
	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		struct probe *probe = &probes[i];

		err = probe->tracepoint ? tracepoint_probe_register(probe->tracepoint, probe->hook,
								    NULL) : -ENOENT;
		probe->attached = !err;
		if (!strcmp(probe->name, "csd_queue_cpu"))
			WRITE_ONCE(sees_lists, !err);
		if (!err)
			continue;
		if (probe->optional) {
			pr_info("this kernel has no %s (%d): the vCPU does without\n", probe->name,
				err);
			continue;
		}
		pr_err("this kernel's %s cannot be had (%d), and is needed\n", probe->name, err);
		vcoop_probes_detach();
		return err;
	}
	return 0;
}

void vcoop_probes_detach(void)
{
	unsigned int cpu;
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		if (!probes[i].attached)
			continue;
		tracepoint_probe_unregister(probes[i].tracepoint, probes[i].hook, NULL);
		probes[i].attached = false;
	}
	/* No CPU is in a hook any more. */
	tracepoint_synchronize_unregister();
	for_each_possible_cpu(cpu)
		irq_work_sync(&per_cpu_ptr(&vcoop_vcpus, cpu)->after_locks);
}

void vcoop_probes_show(struct seq_file *file)
{
	int i;

	seq_puts(file, "probes:");
	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (probes[i].attached)
			seq_printf(file, " %s", probes[i].name);
	seq_puts(file, "\nmissing:");
	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (!probes[i].attached)
			seq_printf(file, " %s", probes[i].name);
	seq_puts(file, "\n");
}
