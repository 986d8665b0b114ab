// SPDX-License-Identifier: GPL-2.0
/* The window: memory that host and guest share, and the doorbell. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <asm/tsc.h>

#include "vcoop.h"

static bool ram;
module_param(ram, bool, 0444);
MODULE_PARM_DESC(ram, "window in pages of this guest's own memory, for a host that can read it");

static char *phys;
module_param(phys, charp, 0444);
MODULE_PARM_DESC(phys, "window at a physical address: ADDRESS,BYTES (a virtio-pmem region)");

static char *pci;
module_param(pci, charp, 0444);
MODULE_PARM_DESC(pci, "PCI address of the ivshmem device, if there are several: 0000:00:04.0");

struct vcoop_window vcoop_window;

/* A host asks for the clock every second. One that does not has gone, and what it wanted is old. */
#define HOST_GONE (5 * HZ)

/* The CPUs that the host would like to be used, as a list; nothing: it does not say. */
static int get_preferred(char *buffer, const struct kernel_param *kp)
{
	static unsigned long asked;
	static u64 ping;
	const struct vcoop_host_area *host;
	cpumask_var_t cpus;
	unsigned int cpu;
	int length;

	/* The lock of the module's parameters is held. */
	if (!vcoop_window.header || !vcoop_host_is_there())
		return sysfs_emit(buffer, "\n");
	host = vcoop_host_area(vcoop_guest_page(0));
	if (READ_ONCE(host->ping) != ping) {
		ping = READ_ONCE(host->ping);
		asked = jiffies;
	}
	if (!(READ_ONCE(host->hints) & VCOOP_HINT_PREFERRED_VALID) ||
	    time_after(jiffies, asked + HOST_GONE))
		return sysfs_emit(buffer, "\n");
	if (!zalloc_cpumask_var(&cpus, GFP_KERNEL))
		return -ENOMEM;
	for_each_possible_cpu(cpu)
		if (cpu >= 64 * VCOOP_PREFERRED_WORDS ||
		    READ_ONCE(host->preferred[cpu / 64]) >> cpu % 64 & 1)
			cpumask_set_cpu(cpu, cpus);
	length = sysfs_emit(buffer, "%*pbl\n", cpumask_pr_args(cpus));
	free_cpumask_var(cpus);
	return length;
}

static const struct kernel_param_ops preferred_ops = { .get = get_preferred };
module_param_cb(preferred, &preferred_ops, NULL, 0444);
MODULE_PARM_DESC(preferred, "read only: the CPUs that the host prefers this guest to use");

/* Memory that holds something else is somebody else's. */
static bool is_ours(u64 word)
{
	return !word || word >> 32 == VCOOP_MAGIC;
}

static int use(void *base, u64 bytes)
{
	struct vcoop_window *w = &vcoop_window;
	struct vcoop_window_header *header = base;
	u64 slots = bytes < VCOOP_PAGE_SIZE ? 0 :
		    (bytes - VCOOP_PAGE_SIZE) / (2 * VCOOP_PAGE_SIZE);

	if (!slots) {
		pr_err("a window of %llu bytes has no room for a vCPU; it needs 8192 for each, and 4096\n",
		       bytes);
		return -EINVAL;
	}
	if (!is_ours(READ_ONCE(header->host)) || !is_ours(READ_ONCE(header->guest))) {
		pr_err("the memory at %#llx is in use for something else\n", w->address);
		return -EBUSY;
	}
	w->bytes = bytes;
	w->slots = min_t(u64, slots, VCOOP_WINDOW_MOST_SLOTS);
	w->header = header;
	if (w->slots < nr_cpu_ids)
		pr_warn("the window has room for %u vCPUs of %u; the others do not take part\n",
			w->slots, nr_cpu_ids);
	return 0;
}

static int open_ram(void)
{
	struct vcoop_window *w = &vcoop_window;
	u64 bytes = VCOOP_PAGE_SIZE * (1 + 2 * (u64)nr_cpu_ids);
	struct page *pages;

	/* A block of the page allocator is aligned to its size. */
	w->order = get_order(max_t(u64, min_t(u64, bytes, 4ULL << 20),
				   VCOOP_WINDOW_RAM_ALIGNMENT));
	pages = alloc_pages(GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN, w->order);
	if (!pages) {
		pr_err("no %lu contiguous bytes are free: load the module earlier\n",
		       PAGE_SIZE << w->order);
		return -ENOMEM;
	}
	w->kind = "ram";
	w->address = page_to_phys(pages);
	return use(page_address(pages), PAGE_SIZE << w->order);
}

static int map(u64 address, u64 bytes)
{
	void *base = memremap(address, bytes, MEMREMAP_WB);
	int err;

	if (!base) {
		pr_err("cannot map %llu bytes at %#llx\n", bytes, address);
		return -ENOMEM;
	}
	vcoop_window.address = address;
	err = use(base, bytes);
	if (err)
		memunmap(base);
	return err;
}

static int open_phys(void)
{
	unsigned long long address, bytes;
	char *rest;

	address = simple_strtoull(phys, &rest, 0);
	bytes = *rest == ',' ? simple_strtoull(rest + 1, &rest, 0) : 0;
	if (*rest || !bytes || !PAGE_ALIGNED(address)) {
		pr_err("phys=%s: expected ADDRESS,BYTES with an address of a whole page\n", phys);
		return -EINVAL;
	}
	if (region_intersects(address, bytes, IORESOURCE_SYSTEM_RAM, IORES_DESC_NONE) !=
	    REGION_DISJOINT) {
		pr_err("phys=%s: the kernel uses this memory\n", phys);
		return -EBUSY;
	}
	vcoop_window.kind = "phys";
	return map(address, bytes);
}

/* The device that is named; else the only one. */
static struct pci_dev *find_device(void)
{
	struct pci_dev *device = NULL, *found = NULL;
	unsigned int count = 0;

	while ((device = pci_get_device(VCOOP_IVSHMEM_VENDOR, VCOOP_IVSHMEM_DEVICE, device))) {
		if (pci && strcmp(pci, pci_name(device)))
			continue;
		count++;
		if (!found)
			found = pci_dev_get(device);
	}
	if (count == 1)
		return found;
	pci_dev_put(found);
	if (count)
		pr_err("there are %u ivshmem devices: say which by pci=\n", count);
	else
		pr_err("there is no ivshmem device%s%s, and neither phys= nor ram=1 was given\n",
		       pci ? " " : "", pci ?: "");
	return NULL;
}

static int open_pci(void)
{
	struct vcoop_window *w = &vcoop_window;
	struct pci_dev *device = find_device();
	int err;

	if (!device)
		return -ENODEV;
	if (device->driver) {
		pr_err("%s: driver %s has this device\n", pci_name(device), device->driver->name);
		err = -EBUSY;
		goto put;
	}
	err = pci_enable_device(device);
	if (err)
		goto put;
	err = pci_request_region(device, 0, KBUILD_MODNAME);
	if (err)
		goto disable;
	w->kind = "pci";
	err = map(pci_resource_start(device, VCOOP_IVSHMEM_WINDOW_BAR),
		  pci_resource_len(device, VCOOP_IVSHMEM_WINDOW_BAR));
	if (err)
		goto release;
	/* Without it there is a window still, that the host looks at now and then. */
	w->doorbells = pci_iomap(device, 0, 0);
	w->device = device;
	return 0;

release:
	pci_release_region(device, 0);
disable:
	pci_disable_device(device);
put:
	pci_dev_put(device);
	return err;
}

int vcoop_window_open(void)
{
	if (!!ram + !!phys + !!pci > 1) {
		pr_err("only one of ram=, phys= and pci= can be given\n");
		return -EINVAL;
	}
	if (ram)
		return open_ram();
	if (phys)
		return open_phys();
	return open_pci();
}

/*
 * A host that has the window in this guest's memory writes to it until it sees that the driver has gone, and says so by its
 * header word. After the end of the registration: whether the pages may be used for something else. One that does not
 * answer may write still.
 */
bool vcoop_window_is_free(void)
{
	struct vcoop_window_header *header = vcoop_window.header;
	unsigned int tries;

	if (strcmp(vcoop_window.kind, "ram"))
		return true;
	for (tries = 0; READ_ONCE(header->host); tries++) {
		if (tries == 100)
			return false;
		msleep(20);
	}
	return true;
}

void vcoop_window_close(void)
{
	struct vcoop_window *w = &vcoop_window;
	void *base = w->header;
	bool is_free = vcoop_window_is_free();

	/* Parameters can be read until the module is gone. */
	kernel_param_lock(THIS_MODULE);
	w->header = NULL;
	kernel_param_unlock(THIS_MODULE);
	if (strcmp(w->kind, "ram"))
		memunmap(base);
	else if (is_free)
		free_pages((unsigned long)base, w->order);
	else
		pr_warn("the host has not let go of the window: %lu KiB stay allocated\n",
			(PAGE_SIZE << w->order) >> 10);
	if (!w->device)
		return;
	if (w->doorbells)
		pci_iounmap(w->device, w->doorbells);
	pci_release_region(w->device, 0);
	pci_disable_device(w->device);
	pci_dev_put(w->device);
}

struct vcoop_guest_page *vcoop_guest_page(unsigned int cpu)
{
	if (cpu >= vcoop_window.slots)
		return NULL;
	return (void *)vcoop_window.header + VCOOP_PAGE_SIZE * (1 + 2 * cpu);
}

void vcoop_window_register(void)
{
	struct vcoop_window_header *header = vcoop_window.header;

	WRITE_ONCE(header->vcpus, min(nr_cpu_ids, vcoop_window.slots));
	WRITE_ONCE(header->tsc_khz, tsc_khz);
	WRITE_ONCE(header->registration, rdtsc_ordered());
	/* Last: a host that sees it sees all that was stored before. */
	virt_store_release(&header->guest, VCOOP_HEADER);
	vcoop_ring();
}

void vcoop_window_unregister(void)
{
	virt_store_release(&vcoop_window.header->guest, 0);
	vcoop_ring();
}

/* Without a host, what the host areas say is old. */
bool vcoop_host_is_there(void)
{
	return READ_ONCE(vcoop_window.header->host) == VCOOP_HEADER;
}

/* The doorbell is read each time: a host may come late, and come again as another peer. */
bool vcoop_ring(void)
{
	u64 doorbell = READ_ONCE(vcoop_window.header->doorbell);

	if (!vcoop_window.doorbells || !(doorbell & VCOOP_DOORBELL_VALID) ||
	    !vcoop_host_is_there())
		return false;
	writel((u32)doorbell, vcoop_window.doorbells + VCOOP_DOORBELL_REGISTER);
	return true;
}
