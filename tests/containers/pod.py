"""A program with many connections, which are silent most of the time.

    pod.py ADDRESS PORT COUNT

Talks on each to a server that sends back what it gets, prints `ready`, and sleeps until SIGUSR1, which has it do that again.
"""

import signal
import socket
import sys

ROUNDS = 20
BYTES = 64


def exchange(connection: socket.socket, message: bytes) -> None:
    """One message there and back."""
    connection.sendall(message)
    answer = b""
    while len(answer) < len(message):
        part = connection.recv(len(message) - len(answer))
        if not part:
            sys.exit("the server has closed")
        answer += part
    if answer != message:
        sys.exit(f"{answer!r} came back, and not {message!r}")


def main() -> None:
    """Plays the program until it is ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    connections = [socket.create_connection((address, port)) for _ in range(count)]
    while True:
        for number, connection in enumerate(connections):
            for turn in range(ROUNDS):
                exchange(connection, f"{number} {turn}".ljust(BYTES).encode())
        print("ready", flush=True)
        signal.sigwait({signal.SIGUSR1})


if __name__ == "__main__":
    main()
