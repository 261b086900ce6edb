"""Drive the C++ client that PyPI's `rocketmq` wraps; see `stock_clients` for the lines it reads and writes.

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
os.dup2(2, 1)  # what the library prints must not mix with the answers
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


def producer(group: str = "cpp-producers") -> Producer:
    """The producer of a group, started at first use."""
    if group not in _producers:
        made = Producer(group)
        made.set_namesrv_addr(NAME_SERVER)
        if ACCOUNT[0]:
            made.set_session_credentials(*ACCOUNT)
        made.start()
        _producers[group] = made
    return _producers[group]


def message(
    topic: str, body: str, tag: str = "", keys: str = "", level: int = 0, properties: Mapping[str, str] | None = None
) -> Message:
    """A message with what is given; `level` is one of delay."""
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
    """Text of what the library returns."""
    return (value or b"").decode()


def send(topic: str, body: str, **more: object) -> dict[str, object]:
    """Send and wait for the answer."""
    result = producer().send_sync(message(topic, body, **more))
    return {"status": int(result.status), "message_id": result.msg_id, "queue_offset": result.offset}


def send_whole(topic: str, body: str) -> dict[str, object]:
    """Send as it is, but for some bytes that deflate adds, however large it is: the broker says what is too much."""
    if WHOLE not in _producers:
        made = Producer(WHOLE, max_message_size=1 << 30, compress_level=0, timeout=30_000)
        made.set_namesrv_addr(NAME_SERVER)
        made.start()
        _producers[WHOLE] = made
    result = _producers[WHOLE].send_sync(message(topic, body))
    return {"status": int(result.status), "message_id": result.msg_id, "queue_offset": result.offset}


def send_oneway(topic: str, body: str) -> None:
    """Send and want no answer."""
    producer().send_oneway(message(topic, body))


def send_orderly(topic: str, body: str, shard: int) -> dict[str, object]:
    """Send to the queue that `shard` selects."""
    result = producer().send_orderly(message(topic, body), shard)
    return {"status": int(result.status), "message_id": result.msg_id, "queue_offset": result.offset}


def send_batch(topic: str, bodies: list[str]) -> dict[str, object]:
    """Send several messages as one."""
    result = producer().send_batch([message(topic, body) for body in bodies])
    return {"status": int(result.status), "message_id": result.msg_id, "queue_offset": result.offset}


def _send_async(made: Message) -> None:
    """Send asynchronously, and wait for one of the callbacks; raises what the second one gets."""
    outcome: queue.Queue[object] = queue.Queue()
    producer().send_async(made, outcome.put, outcome.put)
    ended = outcome.get()
    if isinstance(ended, Exception):
        raise ended


def stream(topic: str, prefix: str, count: int, pause_ms: float, *, asynchronous: bool = False) -> int:
    """Send `count` numbered messages one after the other, each until it is acknowledged; say every attempt's end."""
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
    """Let every stream end after the message it is at."""
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
    """Start a push consumer that says what it receives, and cannot handle a body as often as `fails` says.

    It begins at the end, and cannot be told otherwise.
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
    made = PushConsumer(group, orderly=orderly, message_model=model)
    made.set_namesrv_addr(NAME_SERVER)
    if ACCOUNT[0]:
        made.set_session_credentials(*ACCOUNT)
    made.set_instance_name(name)
    made.subscribe(topic, receive, tag)
    if fails:  # an exception in a callback ends as a success: the binding raises it where ctypes drops it
        made._register_callback(receive_or_fail)
    made.start()
    _pushers[name] = made


def close_push(name: str) -> None:
    """Stop a push consumer as an application does."""
    _pushers.pop(name).shutdown()


def pull(group: str, topic: str, tag: str = "*") -> list[str]:
    """Bodies a pull consumer finds from where its last pull ended."""
    if group not in _pullers:
        made = PullConsumer(group)
        made.set_namesrv_addr(NAME_SERVER)
        if ACCOUNT[0]:
            made.set_session_credentials(*ACCOUNT)
        made.start()
        _pullers[group] = made
    return [text(one.body) for one in _pullers[group].pull(topic, tag)]


CALLS: dict[str, Callable[..., object]] = {
    call.__name__: call
    for call in (send, send_whole, send_oneway, send_orderly, send_batch, stream, stop_streams, push, close_push, pull)
}


def answer(call_id: int, name: str, arguments: dict[str, object]) -> None:
    """Carry out one call and say how it ended."""
    try:
        say(id=call_id, result=CALLS[name](**arguments))
    except Exception as error:
        say(id=call_id, error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Carry out calls until the input ends; streams run beside the others."""
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
    os._exit(0)  # the library's destructors wait for threads that nobody needs any more


if __name__ == "__main__":
    main()
