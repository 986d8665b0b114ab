/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The shared page between a vcoop guest and its host.
 *
 * One pair of areas a vCPU. The guest writes struct vcoop_guest_area, the host
 * writes struct vcoop_host_area; each is in a 4096-byte page of its own, the
 * host's mapped read-only into the guest. Every fact is one aligned
 * little-endian 64-bit word with a single writer. Read and write whole words
 * (__atomic_load_n, __atomic_store_n): acquire and release, except for the
 * handshake below.
 *
 * Handshake. A side that stores words and then looks at the other side's puts
 * a full fence (__atomic_thread_fence(__ATOMIC_SEQ_CST)) in between:
 *
 *   guest, leaving its urgent work:  store request, intent, cs; store ack;
 *                                    fence; load status; if boosted: store
 *                                    request = unboost, write the notify MSR
 *   host, boosting:                  store ticket; store status = boosted;
 *                                    raise the thread; make the interrupt
 *                                    visible; fence; load ack, then the rest;
 *                                    if nothing is urgent and ack >= ticket:
 *                                    restore the thread, store status = normal
 *
 * The ticket is stored before the interrupt is visible. A guest reads it when
 * the interrupt handler begins, and stores it as ack when the outermost one
 * ends.
 */
#ifndef VCOOP_ABI_H
#define VCOOP_ABI_H

#ifdef __KERNEL__
#include <linux/types.h>
#ifndef UINT64_C
#define UINT64_C(x) x##ULL
#define UINT32_C(x) x##U
#endif
#else
#include <stdint.h>
#endif

#define VCOOP_ABI_VERSION 1
#define VCOOP_PROTOCOL 1
#define VCOOP_PAGE_SIZE 4096
#define VCOOP_PREFERRED_WORDS 4

/* Header word: ABI version, protocol << 16, magic << 32. */
#define VCOOP_MAGIC UINT32_C(0x706f6376) /* "vcop" */
#define VCOOP_HEADER                                                  \
	((uint64_t)VCOOP_MAGIC << 32 | (uint64_t)VCOOP_PROTOCOL << 16 | \
	 VCOOP_ABI_VERSION)

/* Class of a task. Unknown values read as VCOOP_CLASS_NONE. */
enum vcoop_class {
	VCOOP_CLASS_NONE = 0,
	VCOOP_CLASS_FAIR = 1,
	VCOOP_CLASS_FIFO = 2,
	VCOOP_CLASS_RR = 3,
	VCOOP_CLASS_DEADLINE = 4,
	VCOOP_CLASS_IDLE = 5,
	VCOOP_CLASS_STOP = 6,
};

/*
 * Intent word: the running task in bits 0..15, the pending one in bits 16..31.
 * A task is class | prio << 8; prio: 1..99 for FIFO and RR, nice + 20 for
 * fair, else 0.
 */
#define VCOOP_TASK(class, prio) ((uint64_t)(class) | (uint64_t)(prio) << 8)
#define VCOOP_TASK_DECLARED 0x80 /* in the class: declared latency sensitive */
#define VCOOP_INTENT_PENDING_SHIFT 16
#define VCOOP_INTENT_PENDING_VALID (UINT64_C(1) << 32)
#define VCOOP_INTENT_IDLE (UINT64_C(1) << 33)

/* Remote word: a task in bits 0..15, how many so far in the rest. */
#define VCOOP_REMOTE_COUNT_SHIFT 16

/*
 * Critical-section word: nesting depths of NMI, hard interrupt and softirq in
 * one byte each, the flag, and the number of the preempt-disabled section.
 */
#define VCOOP_CS_NMI_SHIFT 0
#define VCOOP_CS_HARDIRQ_SHIFT 8
#define VCOOP_CS_SOFTIRQ_SHIFT 16
#define VCOOP_CS_PREEMPT_OFF (UINT64_C(1) << 24)
#define VCOOP_CS_SECTION_SHIFT 32

/* Request word. Unknown values read as VCOOP_REQUEST_NONE. */
enum vcoop_request {
	VCOOP_REQUEST_NONE = 0,
	VCOOP_REQUEST_UNBOOST = 1,
	VCOOP_REQUEST_BOOST = 2,
};

/* Status word. Unknown values read as VCOOP_STATUS_DISABLED. */
enum vcoop_status {
	VCOOP_STATUS_DISABLED = 0,
	VCOOP_STATUS_NORMAL = 1,
	VCOOP_STATUS_BOOSTED = 2,
	VCOOP_STATUS_THROTTLED = 3,
};

/* Hints word. */
#define VCOOP_HINT_DEDICATED (UINT64_C(1) << 0)
#define VCOOP_HINT_UNPREEMPTED_WHEN_BOOSTED (UINT64_C(1) << 1)
#define VCOOP_HINT_PREFERRED_VALID (UINT64_C(1) << 2)
#define VCOOP_HINT_STEAL_VALID (UINT64_C(1) << 3)
#define VCOOP_HINT_EXITLESS_TIMER (UINT64_C(1) << 4)

/* Written by the vCPU, read by the host. */
struct vcoop_guest_area {
	uint64_t header;
	uint64_t reserved0[7];
	uint64_t intent;
	uint64_t cs;
	uint64_t request;
	uint64_t ack;          /* highest ticket handled */
	uint64_t deadline_tsc; /* next timer deadline, guest TSC; 0 = none */
	uint64_t pong;         /* the last ping that was seen */
	uint64_t pong_tsc;     /* guest TSC just before pong was stored */
	uint64_t remote;       /* any vCPU: urgent tasks put here by others */
} __attribute__((aligned(64)));

/* Written by the host, read by the vCPU. */
struct vcoop_host_area {
	uint64_t header;
	uint64_t reserved0[7];
	uint64_t status;
	uint64_t ticket;
	uint64_t budget_left_ns;
	uint64_t steal_ns;
	uint64_t hints;
	uint64_t ping;
	uint64_t tell_idle;    /* not 0: ring when the vCPU goes idle */
	uint64_t reserved1;
	uint64_t preferred[VCOOP_PREFERRED_WORDS]; /* one bit a vCPU */
	uint64_t reserved2[4];
} __attribute__((aligned(64)));

/*
 * CPUID: blocks of 256 leaves from VCOOP_LEAF_FIRST on; ours has the signature
 * in ebx, ecx, edx of its first leaf. Second leaf: eax = protocol << 16 | ABI
 * version, ebx = features, ecx and edx = low and high half of the address of
 * the host areas; page n is vCPU n's.
 */
#define VCOOP_LEAF_FIRST UINT32_C(0x40000000)
#define VCOOP_LEAF_BASE UINT32_C(0x40000200)
#define VCOOP_LEAF_STEP UINT32_C(0x100)
#define VCOOP_LEAF_BLOCKS 256
#define VCOOP_SIGNATURE "vcoopvcoop\0" /* and the string's own zero: 12 bytes */

#define VCOOP_FEATURE_BOOST (UINT32_C(1) << 0)
#define VCOOP_FEATURE_EXITLESS_TIMER (UINT32_C(1) << 1)
#define VCOOP_FEATURE_PREFERRED (UINT32_C(1) << 2)
#define VCOOP_FEATURE_STEAL (UINT32_C(1) << 3)

/*
 * Register: page address | enable; 0 ends the registration; anything else
 * faults and changes nothing. Notify: any value; the boost ends if the words
 * say that nothing is urgent.
 */
#define VCOOP_MSR_REGISTER UINT32_C(0x76636f00)
#define VCOOP_MSR_NOTIFY UINT32_C(0x76636f01)
#define VCOOP_REGISTER_ENABLE UINT64_C(1)

/*
 * Window: the pages of all vCPUs in memory that host and guest share, for VMMs
 * that know nothing of this interface. Page 0 is a struct vcoop_window_header;
 * page 1 + 2n is vCPU n's struct vcoop_guest_page, page 2 + 2n its struct
 * vcoop_host_area. A side registers by storing its header word last, and ends
 * it by storing 0. To ring, store the low half of the doorbell word at offset
 * VCOOP_DOORBELL_REGISTER of the ivshmem device's BAR 0: at the end of a boost
 * (request = unboost), when a deadline becomes earlier than the host can know,
 * and after an exchange of another vCPU's remote word.
 */
#define VCOOP_WINDOW_MOST_SLOTS 512
#define VCOOP_WINDOW_RAM_ALIGNMENT (UINT64_C(2) << 20)
#define VCOOP_IVSHMEM_VENDOR 0x1af4
#define VCOOP_IVSHMEM_DEVICE 0x1110
#define VCOOP_IVSHMEM_WINDOW_BAR 2
#define VCOOP_DOORBELL_REGISTER 12
#define VCOOP_DOORBELL_VALID (UINT64_C(1) << 63)
#define VCOOP_VCPU_ONLINE (UINT64_C(1) << 63) /* the APIC id is in bits 0..31 */

struct vcoop_window_header {
	uint64_t host;     /* header word; 0: no host */
	uint64_t doorbell; /* valid; peer << 16 | vector */
	uint64_t reserved0[6];
	uint64_t guest;    /* header word; 0: no driver */
	uint64_t vcpus;    /* vCPUs are numbered below this */
	uint64_t tsc_khz;
	uint64_t registration; /* differs from the one before */
	uint64_t reserved1[4];
} __attribute__((aligned(64)));

/*
 * Latencies of urgent tasks, from when the timer that woke the task was due to
 * when the task ran: 32 buckets of 64 ns, then 16 for each power of two.
 */
#define VCOOP_LATENCY_BUCKETS 352

static inline unsigned int vcoop_latency_bucket(uint64_t ns)
{
	uint64_t units = ns >> 6;
	unsigned int octave, bucket;

	if (units < 32)
		return (unsigned int)units;
	octave = 63 - (unsigned int)__builtin_clzll(units) - 4;
	bucket = 16 + 16 * (octave - 1) + (unsigned int)(units >> octave);
	return bucket < VCOOP_LATENCY_BUCKETS ? bucket : VCOOP_LATENCY_BUCKETS - 1;
}

/* All but the first are counts since the registration. */
struct vcoop_guest_report {
	uint64_t vcpu;      /* online, APIC id */
	uint64_t events;    /* that the guest half was told of */
	uint64_t notified;  /* rang at the end of a boost */
	uint64_t deadlines; /* urgent ones, published */
	uint64_t stale;     /* passed unused, and forgotten */
	uint64_t dropped;   /* urgent timers for which there was no room */
	uint64_t latency_sum_ns;
	uint64_t latency_max_ns;
	uint64_t reserved[8];
	uint64_t latency[VCOOP_LATENCY_BUCKETS];
} __attribute__((aligned(64)));

struct vcoop_guest_page {
	struct vcoop_guest_area area;
	struct vcoop_guest_report report;
} __attribute__((aligned(VCOOP_PAGE_SIZE)));

#endif
