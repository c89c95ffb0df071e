/* Included before the epoll self-tests of the kernel, which wait for UNIX socket pairs: makes `socketpair` give
 * the two ends of a TCP connection over the loopback interface, so that the same cases are about TCP. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static int tcp_socketpair(int domain, int type, int protocol, int pair[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int one = 1;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	(void)domain, (void)type, (void)protocol;
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		return -1;
	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(pair[0], (struct sockaddr *)&address, length))
		return -1;
	pair[1] = accept(listener, NULL, NULL);
	close(listener);
	setsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(pair[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return pair[1] < 0 ? -1 : 0;
}

#define socketpair tcp_socketpair
