/* How many hashes of tuples of 12 bytes DPDK's `rte_softrss` computes in a second: what `millrace load toeplitz` does by ours, with the
 * same tuples. `make peers` compiles it, and `millrace bench run scheduler/toeplitz` asks both.
 *
 *     millrace-softrss --time SECONDS
 */
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_thash.h>
#include <rte_version.h>

#define TUPLES 4096
#define SECONDS_MAX 3600

/* The compiler knows it, and so turns its bytes round beforehand: `rte_softrss_be`, which is for that, would be no faster here. */
static const uint8_t key[40] __attribute__((aligned(4))) = {
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

/* Every tuple once; the sum of all hashes. */
static uint32_t pass(void)
{
	uint32_t sum = 0;
	unsigned int at;

	for (at = 0; at < TUPLES; at++) {
		sum = sum * 31 + rte_softrss(tuples[at], 3, key);
		/* Nothing is known of what a packet has. */
		__asm__ volatile("" : : "r"(tuples) : "memory");
	}
	return sum;
}

int main(int count, char **words)
{
	uint32_t state = 1, sum;
	uint64_t hashes = 0;
	unsigned int at, word;
	double asked, begin, elapsed;
	char *end;

	if (count == 2 && !strcmp(words[1], "--version")) {
		printf("millrace-softrss of %s %d.%02d.%d\n", RTE_VER_PREFIX, RTE_VER_YEAR, RTE_VER_MONTH, RTE_VER_MINOR);
		return 0;
	}
	errno = 0;
	asked = count == 3 && !strcmp(words[1], "--time") ? strtod(words[2], &end) : 0;
	if (asked == 0 || errno || *end || !(asked > 0 && asked <= SECONDS_MAX)) {
		fprintf(stderr, "millrace-softrss --time SECONDS: hashes for so long, above 0 and up to %d seconds\n", SECONDS_MAX);
		return 2;
	}
	for (at = 0; at < TUPLES; at++)
		for (word = 0; word < 3; word++) {
			state = state * 1664525 + 1013904223;
			tuples[at][word] = state;
		}
	sum = pass();
	begin = seconds();
	do {
		if (pass() != sum) {
			fprintf(stderr, "millrace-softrss: the same tuples have other hashes the second time\n");
			return 1;
		}
		hashes += TUPLES;
		elapsed = seconds() - begin;
	} while (elapsed < asked);
	printf("{\"rate\":%.17g,\"hashes\":%" PRIu64 ",\"seconds\":%.17g,\"sum\":%" PRIu32 "}\n", hashes / elapsed, hashes, elapsed, sum);
	return 0;
}
