/* What programs for guests need of control groups (version 2, mounted at /sys/fs/cgroup). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>

static void put(const char *folder, const char *file, const char *value)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/%s", folder, file);
	f = fopen(path, "w");
	if (!f || fputs(value, f) < 0 || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

static void join(const char *name, pid_t pid)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", pid);
	put(name, "cgroup.procs", text);
}

static void make_group(const char *name, const char *weight, const char *max)
{
	char path[64];

	put("", "cgroup.subtree_control", "+cpu");
	snprintf(path, sizeof(path), "/sys/fs/cgroup/%s", name);
	if (mkdir(path, 0755) != 0 && errno != EEXIST) {
		perror(path);
		exit(1);
	}
	put(name, "cpu.weight", weight);
	put(name, "cpu.max", max);
}
