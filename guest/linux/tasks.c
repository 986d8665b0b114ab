// SPDX-License-Identifier: GPL-2.0
/*
 * Which tasks are urgent: those of the RT and deadline classes, and fair ones
 * that the administrator has declared so, by their nice value, their EEVDF slice
 * or their cgroup.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cgroup.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/sched/rt.h>
#include <linux/version.h>

#include "vcoop.h"

static bool urgent_rt = true;
module_param(urgent_rt, bool, 0644);
MODULE_PARM_DESC(urgent_rt, "tasks of the RT and deadline classes are urgent (default: yes)");

#define NICE_OFF (MIN_NICE - 1)

static int urgent_nice = NICE_OFF;
module_param(urgent_nice, int, 0644);
MODULE_PARM_DESC(urgent_nice, "fair tasks with at most this nice value are urgent (default: -21, none)");

#define HAVE_CUSTOM_SLICE (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0))

static unsigned int urgent_slice_us;

static int set_slice(const char *text, const struct kernel_param *kp)
{
	unsigned int us;
	int err = kstrtouint(text, 0, &us);

	if (err)
		return err;
	if (us && !HAVE_CUSTOM_SLICE) {
		pr_err("urgent_slice_us: tasks have no slice of their own before Linux 6.12\n");
		return -EOPNOTSUPP;
	}
	WRITE_ONCE(urgent_slice_us, us);
	return 0;
}

static const struct kernel_param_ops slice_ops = { .set = set_slice, .get = param_get_uint };
module_param_cb(urgent_slice_us, &slice_ops, &urgent_slice_us, 0644);
MODULE_PARM_DESC(urgent_slice_us, "fair tasks that have requested a slice of at most this many us are urgent (default: 0, none)");

#ifdef CONFIG_CGROUPS
static struct cgroup __rcu *urgent_cgroup;
static char urgent_cgroup_path[256];
static bool closed;

/* Writers: the lock of the module's parameters, which can be written until the module is gone. */
static int set_cgroup(const char *text, const struct kernel_param *kp)
{
	struct cgroup *new = NULL, *old;
	size_t length = strcspn(text, "\n");

	if (closed)
		return -ENODEV;
	if (length >= sizeof(urgent_cgroup_path))
		return -ENAMETOOLONG;
	if (length) {
		char *path = kstrndup(text, length, GFP_KERNEL);

		if (!path)
			return -ENOMEM;
		new = cgroup_get_from_path(path);
		kfree(path);
		if (IS_ERR(new))
			return PTR_ERR(new);
	}
	memcpy(urgent_cgroup_path, text, length);
	urgent_cgroup_path[length] = 0;
	old = rcu_replace_pointer(urgent_cgroup, new, true);
	if (old) {
		synchronize_rcu();
		cgroup_put(old);
	}
	return 0;
}

static int get_cgroup(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", urgent_cgroup_path);
}

static const struct kernel_param_ops cgroup_ops = { .set = set_cgroup, .get = get_cgroup };
module_param_cb(urgent_cgroup, &cgroup_ops, NULL, 0644);
MODULE_PARM_DESC(urgent_cgroup, "tasks in and below this cgroup are urgent: a path in the v2 hierarchy (default: none)");

static bool in_urgent_cgroup(const struct task_struct *task)
{
	struct cgroup *cgroup;
	bool is = false;

	if (likely(!rcu_access_pointer(urgent_cgroup)))
		return false;
	rcu_read_lock();
	cgroup = rcu_dereference(urgent_cgroup);
	if (cgroup)
		is = cgroup_is_descendant(task_dfl_cgroup((struct task_struct *)task), cgroup);
	rcu_read_unlock();
	return is;
}

void vcoop_tasks_exit(void)
{
	struct cgroup *old;

	kernel_param_lock(THIS_MODULE);
	closed = true;
	old = rcu_replace_pointer(urgent_cgroup, NULL, true);
	kernel_param_unlock(THIS_MODULE);
	if (old)
		cgroup_put(old);
}
#else
static bool in_urgent_cgroup(const struct task_struct *task)
{
	return false;
}

void vcoop_tasks_exit(void) {}
#endif

static bool has_urgent_slice(const struct task_struct *task)
{
#if HAVE_CUSTOM_SLICE
	unsigned int us = READ_ONCE(urgent_slice_us);

	return us && task->se.custom_slice && task->se.slice <= (u64)us * NSEC_PER_USEC;
#else
	return false;
#endif
}

/* The per-CPU stopper looks like a FIFO task of the highest priority. */
static bool is_stopper(const struct task_struct *task)
{
	return (task->flags & PF_KTHREAD) && task->rt_priority == MAX_RT_PRIO - 1 &&
	       !strncmp(task->comm, "migration/", 10);
}

/*
 * FIFO 1 is for threads of the kernel that only have to run before fair tasks. With PREEMPT_RT many are: those of RCU wake
 * each other on all CPUs, and nobody waits for them. Of these only ktimers runs the timers that urgent tasks have armed.
 */
#define BACKGROUND (MAX_RT_PRIO - 1 - 1)

static bool is_background(const struct task_struct *task, int prio)
{
	return prio == BACKGROUND && (task->flags & PF_KTHREAD) &&
	       strncmp(task->comm, "ktimers/", 8);
}

/*
 * A task as the words of the window have it, with this priority of the scheduler's. An urgent one has a class that is,
 * or is declared.
 */
u16 vcoop_task_word_at(const struct task_struct *task, int prio)
{
	u16 word;
	int nice;

	/* A task that holds up such a thread is none that anybody waits for. */
	if (prio == BACKGROUND)
		prio = task->normal_prio;
	if (prio < MAX_RT_PRIO) {
		if (!READ_ONCE(urgent_rt) || is_background(task, prio))
			return VCOOP_TASK(VCOOP_CLASS_NONE, 0);
		if (prio < 0)
			return VCOOP_TASK(VCOOP_CLASS_DEADLINE, 0);
		if (is_stopper(task))
			return VCOOP_TASK(VCOOP_CLASS_STOP, 0);
		/* A fair task that holds up an RT task runs as one of FIFO meanwhile. */
		return VCOOP_TASK(task->policy == SCHED_RR ? VCOOP_CLASS_RR : VCOOP_CLASS_FIFO,
				  clamp(MAX_RT_PRIO - 1 - prio, 1, MAX_RT_PRIO - 1));
	}
	nice = PRIO_TO_NICE(task->static_prio);
	if (task->policy == SCHED_IDLE)
		word = VCOOP_TASK(VCOOP_CLASS_IDLE, 0);
	else
		word = VCOOP_TASK(VCOOP_CLASS_FAIR, nice + 20);
	if (nice <= READ_ONCE(urgent_nice) || has_urgent_slice(task) || in_urgent_cgroup(task))
		word |= VCOOP_TASK_DECLARED;
	return word;
}

u16 vcoop_task_word(const struct task_struct *task)
{
	return vcoop_task_word_at(task, task->prio);
}

void vcoop_tasks_show(struct seq_file *file)
{
	seq_printf(file, "urgent: rt %s", urgent_rt ? "yes" : "no");
	if (urgent_nice > NICE_OFF)
		seq_printf(file, ", nice <= %d", urgent_nice);
	if (urgent_slice_us)
		seq_printf(file, ", slice <= %u us", urgent_slice_us);
#ifdef CONFIG_CGROUPS
	if (urgent_cgroup_path[0])
		seq_printf(file, ", cgroup %s", urgent_cgroup_path);
#endif
	seq_puts(file, "\n");
}
