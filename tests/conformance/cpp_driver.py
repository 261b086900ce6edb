"""Drive the C++ client that PyPI's `rocketmq` wraps. `stock_clients` describes the lines that it reads and writes.

python cpp_driver.py HOST:PORT      address of the name server
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping

_OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # the library's own output must not mix with the answers
_OUT_LOCK = threading.Lock()

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage  # noqa: E402 -- after the redirection
from rocketmq.ffi import MessageModel  # noqa: E402

NAME_SERVER = sys.argv[1]
ACCOUNT = (os.environ.get("DRIVER_ACCESS_KEY", ""), os.environ.get("DRIVER_SECRET", ""), "ALIYUN")
RETRY_PAUSE_SECONDS = 0.1
WHOLE = "cpp-whole"
CONSUME_SUCCESS, RECONSUME_LATER = 0, 1

_producers: dict[str, Producer] = {}
_pushers: dict[str, PushConsumer] = {}
_pullers: dict[str, PullConsumer] = {}
_stop_streams = threading.Event()


def say(**fields: object) -> None:
    """Write one line."""
    with _OUT_LOCK:
        _OUT.write(json.dumps(fields) + "\n")
        _OUT.flush()


def aimed(client: Producer | PushConsumer | PullConsumer) -> Producer | PushConsumer | PullConsumer:
    """Give a client the name server, and the account if there is one."""
    client.set_namesrv_addr(NAME_SERVER)
    if ACCOUNT[0]:
        client.set_session_credentials(*ACCOUNT)
    return client


def told(result: object) -> dict[str, object]:
    """Return the result of a send as it is reported."""
    return {"status": int(result.status), "message_id": result.msg_id, "queue_offset": result.offset}


def producer(group: str = "cpp-producers") -> Producer:
    """Return the producer of a group, started at first use."""
    if group not in _producers:
        _producers[group] = aimed(Producer(group))
        _producers[group].start()
    return _producers[group]


def message(
    topic: str, body: str, tag: str = "", keys: str = "", level: int = 0, properties: Mapping[str, str] | None = None
) -> Message:
    """Build a message. `level` is its delay level."""
    made = Message(topic)
    made.set_body(body)
    if level:
        made.set_delay_time_level(level)
    for name, value in (properties or {}).items():
        made.set_property(name, value)
    if tag:
        made.set_tags(tag)
    if keys:
        made.set_keys(keys)
    return made


def text(value: bytes | None) -> str:
    """Decode the text that the library returns."""
    return (value or b"").decode()


def send(topic: str, body: str, **more: object) -> dict[str, object]:
    """Send and wait for the answer."""
    return told(producer().send_sync(message(topic, body, **more)))


def send_whole(topic: str, body: str) -> dict[str, object]:
    """Send a body of any size uncompressed, so that the broker judges the size.

    Deflate without compression still adds some bytes.
    """
    if WHOLE not in _producers:
        _producers[WHOLE] = aimed(Producer(WHOLE, max_message_size=1 << 30, compress_level=0, timeout=30_000))
        _producers[WHOLE].start()
    return told(_producers[WHOLE].send_sync(message(topic, body)))


def send_oneway(topic: str, body: str) -> None:
    """Send one-way."""
    producer().send_oneway(message(topic, body))


def send_orderly(topic: str, body: str, shard: int) -> dict[str, object]:
    """Send to the queue that `shard` selects."""
    return told(producer().send_orderly(message(topic, body), shard))


def send_batch(topic: str, bodies: list[str]) -> dict[str, object]:
    """Send several messages as one."""
    return told(producer().send_batch([message(topic, body) for body in bodies]))


def _send_async(made: Message) -> None:
    """Send asynchronously, and wait for one of the callbacks. Raise the error that the second callback gets."""
    outcome: queue.Queue[object] = queue.Queue()
    producer().send_async(made, outcome.put, outcome.put)
    ended = outcome.get()
    if isinstance(ended, Exception):
        raise ended


def stream(topic: str, prefix: str, count: int, pause_ms: float, *, asynchronous: bool = False) -> int:
    """Send `count` numbered messages one after the other, each until it is acknowledged, and report each attempt."""
    send_one = _send_async if asynchronous else producer().send_sync
    for number in range(count):
        body = f"{prefix}{number}"
        while True:
            started = time.monotonic()
            try:
                send_one(message(topic, body))
            except Exception as error:
                say(failed=number, error=str(error), ms=(time.monotonic() - started) * 1000)
                if _stop_streams.wait(RETRY_PAUSE_SECONDS):
                    return number
                continue
            say(sent=number, body=body, ms=(time.monotonic() - started) * 1000)
            break
        if _stop_streams.wait(pause_ms / 1000):
            return number + 1
    return count


def stop_streams() -> None:
    """Let every stream end after its current message."""
    _stop_streams.set()


def push(
    name: str,
    group: str,
    topic: str,
    tag: str = "*",
    *,
    orderly: bool = False,
    broadcast: bool = False,
    from_last: bool = True,
    fails: dict[str, int] | None = None,
) -> None:
    """Start a push consumer that reports its messages, and fails for a body as often as `fails` says.

    The consumer always begins at the end of a queue: the client has no option for this.
    """
    assert from_last
    left = dict(fails or {})

    def receive(one: RecvMessage) -> None:
        fields = {"queue_id": one.queue_id, "queue_offset": one.queue_offset, "reconsume_times": one.reconsume_times}
        say(received=name, topic=one.topic, body=text(one.body), tag=text(one.tags), keys=text(one.keys), **fields)

    def receive_or_fail(_consumer: object, handle: object) -> int:
        one = RecvMessage(handle)
        receive(one)
        body = text(one.body)
        with _OUT_LOCK:
            left[body] = left.get(body, 0) - 1
            return RECONSUME_LATER if left[body] >= 0 else CONSUME_SUCCESS

    model = MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING
    made = aimed(PushConsumer(group, orderly=orderly, message_model=model))
    made.set_instance_name(name)
    made.subscribe(topic, receive, tag)
    if fails:  # the binding loses an exception of a callback in ctypes, and the client takes that as success
        made._register_callback(receive_or_fail)
    made.start()
    _pushers[name] = made


def close_push(name: str) -> None:
    """Stop a push consumer as an application does."""
    _pushers.pop(name).shutdown()


def pull(group: str, topic: str, tag: str = "*") -> list[str]:
    """Return the bodies that a pull consumer finds after the end of its last pull."""
    if group not in _pullers:
        _pullers[group] = aimed(PullConsumer(group))
        _pullers[group].start()
    return [text(one.body) for one in _pullers[group].pull(topic, tag)]


CALLS: dict[str, Callable[..., object]] = {
    call.__name__: call
    for call in (send, send_whole, send_oneway, send_orderly, send_batch, stream, stop_streams, push, close_push, pull)
}


def answer(call_id: int, name: str, arguments: dict[str, object]) -> None:
    """Carry out one call and report how it ended."""
    try:
        say(id=call_id, result=CALLS[name](**arguments))
    except Exception as error:
        say(id=call_id, error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Carry out calls until the input ends. Streams run in threads of their own."""
    for line in sys.stdin:
        request = json.loads(line)
        call_id, name = request.pop("id"), request.pop("call")
        if name == "stream":
            producer()
            threading.Thread(target=answer, args=(call_id, name, request), daemon=True).start()
        else:
            answer(call_id, name, request)
    for pusher in _pushers.values():
        pusher.shutdown()
    os._exit(0)  # the library's destructors would wait for threads that are no longer needed


if __name__ == "__main__":
    main()
