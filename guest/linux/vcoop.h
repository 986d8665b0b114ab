/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the driver share. */
#ifndef VCOOP_H
#define VCOOP_H

#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <asm/tsc.h>

#include "half.h"

struct pci_dev;
struct vcoop_vcpu;

/* A counter of the page, which has one writer at a time. */
static inline void vcoop_count(uint64_t *word)
{
	WRITE_ONCE(*word, *word + 1);
}

/* window.c: the memory that is shared with the host. */
struct vcoop_window {
	struct vcoop_window_header *header;
	unsigned int slots;
	const char *kind;	/* "pci", "phys", "ram" */
	u64 address;		/* of the guest's physical memory */
	u64 bytes;
	void __iomem *doorbells;
	struct pci_dev *device;
	unsigned int order;
};

extern struct vcoop_window vcoop_window;

int vcoop_window_open(void);
void vcoop_window_close(void);
bool vcoop_window_is_free(void);
void vcoop_window_register(void);
void vcoop_window_unregister(void);
bool vcoop_host_is_there(void);
bool vcoop_ring(void);
struct vcoop_guest_page *vcoop_guest_page(unsigned int cpu);

static inline const struct vcoop_host_area *vcoop_host_area(const struct vcoop_guest_page *page)
{
	return (const void *)(page + 1);
}

/* deadlines.c: the timers that urgent tasks have armed. */
#define VCOOP_TIMERS 32

struct vcoop_timer {
	const struct hrtimer *timer;	/* compared, never followed; NULL: free */
	u64 tsc;			/* when it expires; 0: its callback runs */
	u64 armed;			/* when it was armed */
	bool soft;			/* expires in a softirq */
	bool late;			/* had passed at the end of an interrupt */
};

struct vcoop_timers {
	/*
	 * Taken inside the lock of a timer base. The hooks turn interrupts off without telling lockdep, which
	 * would take this lock for one that is held with interrupts on.
	 */
	arch_spinlock_t lock;
	u64 next;		/* the earliest; 0: none */
	u64 shown;		/* what the page says */
	unsigned int used;	/* entries from here on are free */
	struct vcoop_timer timers[VCOOP_TIMERS];
};

void vcoop_timer_start(struct hrtimer *timer);
void vcoop_timer_cancel(struct hrtimer *timer);
void vcoop_timer_expire(struct hrtimer *timer);
void vcoop_timer_expired(struct hrtimer *timer);
u64 vcoop_timer_due(const struct vcoop_vcpu *vcpu);
bool vcoop_deadline_is_near(const struct vcoop_vcpu *vcpu);
void vcoop_deadline_show(struct vcoop_vcpu *vcpu);
void vcoop_deadline_purge(struct vcoop_vcpu *vcpu, bool soft);
void vcoop_deadline_forget(struct vcoop_vcpu *vcpu);

/* vcpu.c: one vCPU. All of it belongs to that CPU, with interrupts off. */
struct vcoop_vcpu {
	struct vcoop_half half;
	struct vcoop_guest_page *page;	/* NULL: offline, or it has no slot */
	u64 remote;		/* the remote word as last looked at */
	u64 waiting;		/* declared task that waits: pid << 16 | task; see probes.c */
	u64 pong;
	/* The timers whose callbacks run: in an interrupt; in a softirq, which it may have interrupted. */
	struct vcoop_due {
		const struct hrtimer_clock_base *base;	/* NULL: none does */
		const struct task_struct *task;		/* compared, never followed */
		const void *function;
		ktime_t due;
		u64 armed;				/* 0: not known */
	} due[2];
	/* An urgent task on its way to another CPU's queue, until it is there. */
	struct {
		pid_t pid;
		unsigned int cpu;
		u16 task;
		u64 tsc;
	} waking;
	bool owes_ring;		/* at the end of the next interrupt */
	bool wakes_thread;	/* at its end, this interrupt does, and that is urgent */
	struct irq_work after_locks;
	u64 rang;
	u64 resynced;		/* nesting that had to be put right */
	struct vcoop_timers timers;
};

DECLARE_PER_CPU(struct vcoop_vcpu, vcoop_vcpus);

void vcoop_vcpu_event(struct vcoop_vcpu *vcpu, const struct vcoop_event *event);
void vcoop_vcpu_remote(struct vcoop_vcpu *vcpu, bool due);
void vcoop_vcpu_enqueue(unsigned int cpu, u16 task);
void vcoop_vcpu_online(unsigned int cpu);
void vcoop_vcpu_offline(unsigned int cpu);

/* host.c: what a vCPU and the host say to each other. */
const struct vcoop_host_area *vcoop_host_of(const struct vcoop_vcpu *vcpu);
u64 vcoop_host_status(const struct vcoop_vcpu *vcpu);
bool vcoop_host_wants_idle(const struct vcoop_vcpu *vcpu);
void vcoop_host_pong(struct vcoop_vcpu *vcpu);
void vcoop_host_ring(void);

/* clock.c: the time stamp counter. */
u64 vcoop_ns_to_tsc(u64 ns);
u64 vcoop_tsc_to_ns(u64 tsc);

/* latency.c: how late urgent tasks run that a timer has woken. */
void vcoop_latency_due(const struct task_struct *task, u64 tsc);
void vcoop_latency_ran(const struct vcoop_vcpu *vcpu, const struct task_struct *task);
void vcoop_latency_forget(const struct task_struct *task);

/* tasks.c: which tasks are urgent. */
u16 vcoop_task_word(const struct task_struct *task);
u16 vcoop_task_word_at(const struct task_struct *task, int prio);
void vcoop_tasks_exit(void);
void vcoop_tasks_show(struct seq_file *file);

/* probes.c: the kernel's tracepoints. */
int vcoop_probes_attach(void);
void vcoop_probes_detach(void);
void vcoop_probes_show(struct seq_file *file);

/* debugfs.c */
void vcoop_debugfs_init(void);
void vcoop_debugfs_exit(void);

#endif
