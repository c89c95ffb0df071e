"""Publishes messages, and consumes them by another connection at the same time.

rabbitmq_client.py ADDRESS PORT
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading

import pika

MESSAGES = 3000


def _channel() -> pika.adapters.blocking_connection.BlockingChannel:
    place = pika.ConnectionParameters(sys.argv[1], int(sys.argv[2]))
    channel = pika.BlockingConnection(place).channel()
    channel.queue_declare("queue")
    return channel


def _publish(digest: hashlib._Hash) -> None:
    channel = _channel()
    for number in range(MESSAGES):
        body = number.to_bytes(4, "big") * (1 + number * 7 % 5000)
        digest.update(body)
        channel.basic_publish("", "queue", body)
    channel.connection.close()


def main() -> None:
    """Prints the checksums of both sides."""
    sent, received = hashlib.sha256(), hashlib.sha256()
    publisher = threading.Thread(target=_publish, args=[sent])
    publisher.start()
    channel, count = _channel(), 0
    channel.basic_qos(prefetch_count=50)
    for method, _, body in channel.consume("queue"):
        received.update(body)
        channel.basic_ack(method.delivery_tag)
        count += 1
        if count == MESSAGES:
            break
    publisher.join()
    channel.connection.close()
    print(json.dumps({"sent": sent.hexdigest(), "received": received.hexdigest()}))


if __name__ == "__main__":
    main()
