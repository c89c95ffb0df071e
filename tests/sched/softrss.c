/* What `rte_softrss` of DPDK takes for a tuple of 12 bytes, as crates/sched/examples/toeplitz.rs measures ours: the same inputs, and the
 * sum of all hashes, which must be the same.
 *
 *     cc -O3 -march=native -o softrss softrss.c $(pkg-config --cflags libdpdk)
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <rte_thash.h>

#define TUPLES 4096

static const uint8_t key[40] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};

static uint32_t tuples[TUPLES][3];

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **words)
{
	unsigned int rounds = count > 1 ? atoi(words[1]) : 1000, round, at, word;
	uint32_t state = 1, sum = 0;
	double begin;

	for (at = 0; at < TUPLES; at++)
		for (word = 0; word < 3; word++) {
			state = state * 1664525 + 1013904223;
			tuples[at][word] = state;
		}
	begin = seconds();
	for (round = 0; round < rounds; round++)
		for (at = 0; at < TUPLES; at++) {
			sum = sum * 31 + rte_softrss(tuples[at], 3, key);
			/* Nothing is known of what a packet has. */
			__asm__ volatile("" : : "r"(tuples) : "memory");
		}
	printf("%.3f ns %08x\n", (seconds() - begin) * 1e9 / rounds / TUPLES, sum);
	return 0;
}
