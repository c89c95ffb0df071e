/* Runs a program that may not make some system calls.

       confine ERROR NUMBER... -- PROGRAM [ARGUMENT ...]

   Each system call with one of these numbers fails with this error number, in the program and in whatever it starts. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

enum { CALLS_MAX = 200 };

int main(int count, char **words)
{
	static struct sock_filter steps[2 * CALLS_MAX + 2];
	unsigned short used = 0;
	if (count < 2)
		return 2;
	unsigned error = (unsigned)atoi(words[1]);
	steps[used++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	char **word = words + 2;
	for (; *word && strcmp(*word, "--") && used < 2 * CALLS_MAX; word++) {
		steps[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(*word), 0, 1);
		steps[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
	}
	if (!*word || !word[1])
		return 2;
	steps[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = {used, steps};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return 3;
	execv(word[1], word + 1);
	return 4;
}
