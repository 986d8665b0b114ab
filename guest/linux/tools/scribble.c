// SPDX-License-Identifier: GPL-2.0
/*
 * A hostile guest: writes random words over a window.
 *
 * scribble FILE DELAY SECONDS [SEED]: FILE is resource2 of an ivshmem device.
 * It is mapped at once and written after DELAY seconds: where the driver has
 * mapped the memory first, the kernel refuses a second mapping of another kind.
 * One word in four is one that means something: a header, a small number.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../vcoop_abi.h"

static uint64_t state;

/* xorshift64* */
static uint64_t number(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * UINT64_C(2685821657736338717);
}

static uint64_t word(void)
{
	switch (number() % 8) {
	case 0:
		return VCOOP_HEADER;
	case 1:
		return number() % 8;
	default:
		return number();
	}
}

int main(int argc, char **argv)
{
	uint64_t count = 0;
	volatile uint64_t *words;
	struct stat file;
	time_t end;
	int fd;

	if (argc < 4) {
		fprintf(stderr, "usage: scribble FILE DELAY SECONDS [SEED]\n");
		return 2;
	}
	state = argc > 4 ? strtoull(argv[4], NULL, 0) : 1;
	fd = open(argv[1], O_RDWR);
	if (fd < 0 || fstat(fd, &file)) {
		perror(argv[1]);
		return 1;
	}
	words = mmap(NULL, file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	sleep(strtoul(argv[2], NULL, 0));
	end = time(NULL) + strtoul(argv[3], NULL, 0);
	while (time(NULL) < end) {
		unsigned int i;

		/* Half of them where the first vCPUs' pages begin. */
		for (i = 0; i < 256; i++, count++) {
			uint64_t at = number() % (file.st_size / 8);

			if (number() % 2)
				at = number() % 5 * (VCOOP_PAGE_SIZE / 8) + number() % 32;
			if (at < (uint64_t)file.st_size / 8)
				words[at] = word();
		}
	}
	printf("%llu words\n", (unsigned long long)count);
	return 0;
}
