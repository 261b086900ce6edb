"""Driver of the C++ client of PyPI's `rocketmq`: a process of its own, because the client has threads and may abort.

    python cpp_driver.py NAMESRV TOPIC GROUP PROCESS FIRST-NUMBER

It sends one message after the other until a line `stop-sending` or the end of its standard input, and consumes until
that end. It writes its operations as lines of JSON. Times are nanoseconds of CLOCK_MONOTONIC.

    {"begin": "cpp.p0:17", "ns": …}                       a send begins
    {"end": "cpp.p0:17", "ns": …, "offset": 4}            the send is acknowledged with this queue offset
    {"end": "cpp.p0:17", "ns": …, "error": "…"}           the send fails, its outcome is unknown
    {"deliver": "cpp.p0:17", "ns": …, "queue_id": 0, "offset": 4}    a message is delivered
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from dledger_chaos.workloads.payload import decode_payload, encode_payload

if TYPE_CHECKING:
    from rocketmq.client import Producer, RecvMessage

PAUSE_SECONDS = 0.01
FAILED_PAUSE_SECONDS = 0.1


class Lines:
    """Standard output for lines of JSON only. Output of the library goes to standard error from now on."""

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def say(self, **fields: object) -> None:
        """Write one line."""
        with self._lock:
            self._output.write(json.dumps(fields) + "\n")
            self._output.flush()


def send_all(
    lines: Lines, producer: Producer, topic: str, process: str, number: int, stopping: threading.Event
) -> None:
    """Send until `stopping` is set."""
    from rocketmq.client import Message

    while not stopping.is_set():
        value = f"cpp.{process}:{number}"
        number += 1
        message = Message(topic)
        message.set_keys(value)
        message.set_body(encode_payload(value))
        lines.say(begin=value, ns=time.monotonic_ns())
        try:
            result = producer.send_sync(message)
        except Exception as error:
            lines.say(end=value, ns=time.monotonic_ns(), error=str(error))
            stopping.wait(FAILED_PAUSE_SECONDS)
            continue
        if int(result.status) == 0:
            lines.say(end=value, ns=time.monotonic_ns(), offset=int(result.offset))
        else:
            lines.say(end=value, ns=time.monotonic_ns(), error=f"status {int(result.status)}")
        stopping.wait(PAUSE_SECONDS)


def main() -> None:
    """Send and consume until the input ends."""
    namesrv, topic, group, process, number = sys.argv[1:]
    lines = Lines()

    from rocketmq.client import Producer, PushConsumer

    def deliver(message: RecvMessage) -> None:
        lines.say(
            deliver=decode_payload(bytes(message.body)),
            ns=time.monotonic_ns(),
            queue_id=int(message.queue_id),
            offset=int(message.queue_offset),
        )

    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.set_instance_name(f"{process}-{os.getpid()}")
    consumer.subscribe(topic, deliver)
    consumer.start()
    producer = Producer(f"{group}-producer")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    stopping = threading.Event()
    sending = threading.Thread(target=send_all, args=(lines, producer, topic, process, int(number), stopping))
    sending.start()
    for line in sys.stdin:
        if line.strip() == "stop-sending":
            stopping.set()
    stopping.set()
    sending.join()
    consumer.shutdown()
    os._exit(0)  # the library's destructors wait for threads that are not needed any more


if __name__ == "__main__":
    main()
