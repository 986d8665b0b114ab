/* kexec KERNEL INITRD PARAMETERS: boots that kernel in place of the one that runs. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int kernel, initrd;

	if (argc != 4) {
		fprintf(stderr, "kexec KERNEL INITRD PARAMETERS\n");
		return 2;
	}
	kernel = open(argv[1], O_RDONLY | O_CLOEXEC);
	initrd = open(argv[2], O_RDONLY | O_CLOEXEC);
	if (kernel < 0 || initrd < 0 ||
	    syscall(SYS_kexec_file_load, kernel, initrd, strlen(argv[3]) + 1, argv[3], 0UL)) {
		perror("kexec_file_load");
		return 1;
	}
	sync();
	reboot(RB_KEXEC);
	perror("reboot");
	return 1;
}
