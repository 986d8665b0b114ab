// SPDX-License-Identifier: GPL-2.0
/*
 * The guest's driver of vcoop: tells the host, in memory that both share, what
 * each vCPU runs and when its next urgent timer expires, so that the host can
 * give it a CPU in time, and take it back.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuhotplug.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/reboot.h>
#include <linux/suspend.h>
#include <asm/processor.h>
#include <asm/tsc.h>

#include "vcoop.h"

/* Suspend, reboot and unplug may come at the same time. All of them may sleep. */
static DEFINE_MUTEX(registering);
static int hotplug_state;
static bool over;

static int online(unsigned int cpu)
{
	vcoop_vcpu_online(cpu);
	return 0;
}

static int offline(unsigned int cpu)
{
	vcoop_vcpu_offline(cpu);
	return 0;
}

/* From here on there is a driver; the hooks are attached before. */
static int begin(void)
{
	int state = 0;

	mutex_lock(&registering);
	if (over) {
		state = -ENODEV;
	} else if (!hotplug_state) {
		state = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "vcoop:online", online, offline);
		if (state > 0) {
			hotplug_state = state;
			vcoop_window_register();
		}
	}
	mutex_unlock(&registering);
	return min(state, 0);
}

/* The host sees first that there is none any more. for_good: whatever comes after this. */
static void end(bool for_good)
{
	mutex_lock(&registering);
	over |= for_good;
	if (hotplug_state) {
		vcoop_window_unregister();
		cpuhp_remove_state(hotplug_state);
		hotplug_state = 0;
	}
	mutex_unlock(&registering);
}

static int on_suspend(struct notifier_block *block, unsigned long action, void *data)
{
	switch (action) {
	case PM_HIBERNATION_PREPARE:
	case PM_SUSPEND_PREPARE:
	case PM_RESTORE_PREPARE:
		end(false);
		break;
	case PM_POST_HIBERNATION:
	case PM_POST_SUSPEND:
	case PM_POST_RESTORE:
		if (begin())
			pr_err("does not take part any more after suspend\n");
		break;
	}
	return NOTIFY_OK;
}

/* Also before a kexec: the next kernel knows nothing of this registration, and uses the window's pages for something else. */
static int on_reboot(struct notifier_block *block, unsigned long action, void *data)
{
	end(true);
	if (!vcoop_window_is_free())
		pr_warn("the host has not let go of the window, and may write to the next kernel's memory\n");
	return NOTIFY_OK;
}

/* The window goes with its device; what was mapped of it stays so until the module is unloaded. */
static int on_unplug(struct notifier_block *block, unsigned long action, void *data)
{
	if (action != BUS_NOTIFY_DEL_DEVICE || !vcoop_window.device ||
	    data != &vcoop_window.device->dev)
		return NOTIFY_DONE;
	end(true);
	pr_warn("the device of the window is removed: this guest does not take part any more\n");
	return NOTIFY_OK;
}

static struct notifier_block unplug_block = { .notifier_call = on_unplug };
static struct notifier_block suspend_block = { .notifier_call = on_suspend };
static struct notifier_block reboot_block = { .notifier_call = on_reboot };

static int __init vcoop_init(void)
{
	int err;

	if (!boot_cpu_has(X86_FEATURE_TSC) || !tsc_khz) {
		pr_err("needs a time stamp counter of a known rate\n");
		err = -ENODEV;
		goto exit;
	}
	err = vcoop_window_open();
	if (err)
		goto exit;
	err = vcoop_probes_attach();
	if (err)
		goto close;
	err = begin();
	if (err)
		goto detach;
	err = register_pm_notifier(&suspend_block);
	if (err)
		goto end;
	err = register_reboot_notifier(&reboot_block);
	if (err)
		goto resume;
	err = bus_register_notifier(&pci_bus_type, &unplug_block);
	if (err)
		goto stay;
	vcoop_debugfs_init();
	pr_info("window of %u vCPUs (%s, %#llx), TSC %u kHz\n", vcoop_window.slots,
		vcoop_window.kind, vcoop_window.address, tsc_khz);
	return 0;

stay:
	unregister_reboot_notifier(&reboot_block);
resume:
	unregister_pm_notifier(&suspend_block);
end:
	end(true);
detach:
	vcoop_probes_detach();
close:
	vcoop_window_close();
exit:
	/* Parameters are set before this function is called: one may hold a cgroup. */
	vcoop_tasks_exit();
	return err;
}

static void __exit vcoop_exit(void)
{
	vcoop_debugfs_exit();
	bus_unregister_notifier(&pci_bus_type, &unplug_block);
	unregister_reboot_notifier(&reboot_block);
	unregister_pm_notifier(&suspend_block);
	end(true);
	vcoop_probes_detach();
	vcoop_window_close();
	vcoop_tasks_exit();
}

module_init(vcoop_init);
module_exit(vcoop_exit);

MODULE_DESCRIPTION("Guest half of cooperative vCPU scheduling");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
