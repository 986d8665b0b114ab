// SPDX-License-Identifier: GPL-2.0
/*
 * The time stamp counter's ticks, and nanoseconds. Not inline: with a constant for which a factor and the divisor
 * are the same, a compiler may put both into the register that the kernel's multiplication overwrites.
 */
#include <linux/math64.h>
#include <linux/minmax.h>

#include "vcoop.h"

/* A timeout for ever is the largest time there is, and a product that does not fit is a divide error. */
#define MOST_NS (1ULL << 58)

noinline u64 vcoop_ns_to_tsc(u64 ns)
{
	return mul_u64_u32_div(min(ns, MOST_NS), tsc_khz, NSEC_PER_MSEC);
}

noinline u64 vcoop_tsc_to_ns(u64 tsc)
{
	return mul_u64_u32_div(tsc, NSEC_PER_MSEC, tsc_khz);
}
