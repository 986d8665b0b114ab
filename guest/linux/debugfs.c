// SPDX-License-Identifier: GPL-2.0
/* /sys/kernel/debug/vcoop/state: what the driver does, in text. */
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "vcoop.h"

static struct dentry *folder;

static long long us_from_now(u64 tsc)
{
	s64 left = tsc - rdtsc();

	return left >= 0 ? (s64)vcoop_tsc_to_ns(left) / 1000 : -(s64)vcoop_tsc_to_ns(-left) / 1000;
}

static u64 latencies(const struct vcoop_guest_report *report)
{
	u64 sum = 0;
	unsigned int i;

	for (i = 0; i < VCOOP_LATENCY_BUCKETS; i++)
		sum += report->latency[i];
	return sum;
}

static void show_timers(struct seq_file *file, struct vcoop_timers *timers,
			const struct vcoop_guest_report *report)
{
	struct vcoop_timer copy[VCOOP_TIMERS];
	unsigned int i, used;
	unsigned long flags;

	raw_local_irq_save(flags);
	arch_spin_lock(&timers->lock);
	used = timers->used;
	memcpy(copy, timers->timers, sizeof(copy));
	arch_spin_unlock(&timers->lock);
	raw_local_irq_restore(flags);
	seq_printf(file, "  timers %u, published %llu, stale %llu, dropped %llu\n", used,
		   report->deadlines, report->stale, report->dropped);
	for (i = 0; i < used; i++) {
		if (copy[i].tsc)
			seq_printf(file, "    %p expires in %lld us\n", copy[i].timer,
				   us_from_now(copy[i].tsc));
		else
			seq_printf(file, "    %p expires now\n", copy[i].timer);
	}
}

static void show_vcpu(struct seq_file *file, unsigned int cpu)
{
	struct vcoop_vcpu *vcpu = per_cpu_ptr(&vcoop_vcpus, cpu);
	const struct vcoop_guest_page *page = READ_ONCE(vcpu->page);
	const struct vcoop_host_area *host;

	if (!page) {
		seq_printf(file, "vcpu %u: takes no part\n", cpu);
		return;
	}
	host = vcoop_host_area(page);
	seq_printf(file, "vcpu %u: APIC id %u\n", cpu, (u32)page->report.vcpu);
	seq_printf(file, "  host: status %llu, ticket %llu, ping %llu\n", host->status,
		   host->ticket, host->ping);
	seq_printf(file, "  guest: intent %#llx, cs %#llx, request %llu, ack %llu, remote %#llx\n",
		   page->area.intent, page->area.cs, page->area.request, page->area.ack,
		   page->area.remote);
	seq_printf(file, "  events %llu, notified %llu, rang %llu, resynced %llu\n",
		   page->report.events, page->report.notified, vcpu->rang, vcpu->resynced);
	seq_printf(file, "  latencies %llu, sum %llu ns, max %llu ns\n", latencies(&page->report),
		   page->report.latency_sum_ns, page->report.latency_max_ns);
	show_timers(file, &vcpu->timers, &page->report);
}

static int state_show(struct seq_file *file, void *data)
{
	unsigned int cpu;

	seq_printf(file, "window: %s at %#llx, %llu bytes, %u vCPUs, doorbell %s\n",
		   vcoop_window.kind, vcoop_window.address, vcoop_window.bytes,
		   vcoop_window.slots,
		   vcoop_window.header->doorbell & VCOOP_DOORBELL_VALID ? "yes" : "no");
	seq_printf(file, "host: %s\n", vcoop_host_is_there() ? "yes" : "no");
	vcoop_tasks_show(file);
	vcoop_probes_show(file);
	for_each_online_cpu(cpu)
		show_vcpu(file, cpu);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(state);

void vcoop_debugfs_init(void)
{
	folder = debugfs_create_dir("vcoop", NULL);
	debugfs_create_file("state", 0400, folder, NULL, &state_fops);
}

void vcoop_debugfs_exit(void)
{
	debugfs_remove(folder);
}
