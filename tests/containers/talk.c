/* One end of a conversation between containers: echoes, or sends messages and compares what comes back.

       talk serve ADDRESS PORT
       talk call ADDRESS PORT
       talk busy ADDRESS PORT

   `serve` echoes every connection, one after the other. `call` prints `ready` when enough went there and back, holds the connection
   until SIGTERM, checks once more, and prints `done`. `busy` goes on sending meanwhile. Each takes all memory that there is at SIGUSR1.
   None needs more of the C library than every image's has. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 20000, MORE = 2000, BYTES_MAX = 4096, PLENTY = 1 << 30 };

static volatile sig_atomic_t told;
static char plenty[PLENTY];

static void tell(int signal)
{
	(void)signal;
	told = 1;
}

static void hoard(int signal)
{
	(void)signal;
	for (int index = 0; index < PLENTY; index += 1024)
		((volatile char *)plenty)[index] = 1;
}

static void fail(const char *what)
{
	printf("failed: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void move(int fd, char *bytes, size_t count, int out)
{
	while (count > 0) {
		ssize_t moved = out ? send(fd, bytes, count, MSG_NOSIGNAL) : recv(fd, bytes, count, 0);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved <= 0) {
			errno = moved ? errno : ECONNRESET;
			fail(out ? "send" : "recv");
		}
		bytes += moved;
		count -= (size_t)moved;
	}
}

static int open_socket(const char *address, const char *port, int passive)
{
	struct sockaddr_storage place = {0};
	struct sockaddr_in *four = (struct sockaddr_in *)&place;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&place;
	socklen_t size = sizeof *four;
	if (strchr(address, ':')) {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons((unsigned short)atoi(port));
		inet_pton(AF_INET6, address, &six->sin6_addr);
		size = sizeof *six;
	} else {
		four->sin_family = AF_INET;
		four->sin_port = htons((unsigned short)atoi(port));
		inet_pton(AF_INET, address, &four->sin_addr);
	}
	int fd = socket(place.ss_family, SOCK_STREAM, 0);
	int on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (passive && (bind(fd, (struct sockaddr *)&place, size) || listen(fd, 64)))
		fail("listen");
	/* The server, or the network between, may take a moment. */
	for (int left = 100; !passive && connect(fd, (struct sockaddr *)&place, size); left--) {
		if (!left)
			fail("connect");
		close(fd);
		usleep(50000);
		fd = socket(place.ss_family, SOCK_STREAM, 0);
	}
	return fd;
}

static void exchange(int fd, unsigned *seed, int messages)
{
	char sent[BYTES_MAX], received[BYTES_MAX];
	for (int message = 0; message < messages; message++) {
		size_t count = 1 + (*seed = *seed * 1664525u + 1013904223u) % (message % 16 ? 64 : BYTES_MAX);
		for (size_t index = 0; index < count; index++)
			sent[index] = (char)(*seed >> (index % 24));
		move(fd, sent, count, 1);
		move(fd, received, count, 0);
		if (memcmp(sent, received, count)) {
			errno = EBADMSG;
			fail("compare");
		}
	}
}

static void serve(int listener)
{
	static char bytes[65536];
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		ssize_t count;
		while (fd >= 0 && (count = recv(fd, bytes, sizeof bytes, 0)) > 0)
			move(fd, bytes, (size_t)count, 1);
		close(fd);
	}
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	int serving = !strcmp(words[1], "serve");
	int busy = !strcmp(words[1], "busy");
	signal(SIGUSR1, hoard);
	int fd = open_socket(words[2], words[3], serving);
	if (serving)
		serve(fd);
	signal(SIGTERM, tell);
	unsigned seed = 1;
	exchange(fd, &seed, MESSAGES);
	printf("ready\n");
	fflush(stdout);
	while (!told && busy)
		exchange(fd, &seed, 100);
	while (!told)
		usleep(20000);
	exchange(fd, &seed, MORE);
	printf("done\n");
	return 0;
}
