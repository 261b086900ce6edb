"""Driver of RocketMQ 5's Python client: a process in an environment of its own, driven by lines of JSON.

    python grpc_driver HOST:PORT[;HOST:PORT]      addresses of proxies

    in   {"id": 1, "call": "send", "topic": "T", "body": BASE64, "group": "g" or null}
    out  {"id": 1, "result": ...}   or   {"id": 1, "error": "what the client said"}

It imports nothing of this project, because the client's package has the name of another client's.
"""

import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer

THREADS = 32
WAIT_SECONDS = 2

lock = threading.Lock()
producers: dict[str, Producer] = {}
consumers: dict[str, SimpleConsumer] = {}
held: dict[str, Message] = {}


def say(fields: dict[str, Any]) -> None:
    """Write one line."""
    with lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def configuration() -> ClientConfiguration:
    """Return the settings of a client."""
    return ClientConfiguration(sys.argv[1], Credentials())


def producer(topic: str) -> Producer:
    """Return the started producer of a topic."""
    with lock:
        if topic not in producers:
            producers[topic] = Producer(configuration(), (topic,))
            producers[topic].startup()
        return producers[topic]


def send(asked: dict[str, Any]) -> dict[str, Any]:
    """Send a message. Returns its offset."""
    made = Message()
    made.topic, made.body = asked["topic"], base64.b64decode(asked["body"])
    if asked["group"]:
        made.message_group = asked["group"]
    return {"offset": producer(asked["topic"]).send(made).offset}


def consume(asked: dict[str, Any]) -> None:
    """Start a simple consumer."""
    filters = {asked["topic"]: FilterExpression("*")}
    made = SimpleConsumer(configuration(), asked["group"], filters, WAIT_SECONDS)
    made.startup()
    consumers[asked["consumer"]] = made


def receive(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return messages, each with the handle by which later calls name it."""
    found = consumers[asked["consumer"]].receive(asked["max"], asked["invisible_s"]) or []
    held.update({one.receipt_handle: one for one in found})
    return [
        {
            "handle": one.receipt_handle,
            "body": base64.b64encode(one.body).decode(),
            "attempt": one.delivery_attempt or 1,
        }
        for one in found
    ]


def ack(asked: dict[str, Any]) -> None:
    """Acknowledge a message."""
    consumers[asked["consumer"]].ack(held[asked["handle"]])


def hide(asked: dict[str, Any]) -> dict[str, Any]:
    """Hide a message for a time. Returns its next handle."""
    message = held[asked["handle"]]
    consumers[asked["consumer"]].change_invisible_duration(message, asked["seconds"])
    held[message.receipt_handle] = message
    return {"handle": message.receipt_handle}


CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    call.__name__: call for call in (send, consume, receive, ack, hide)
}


def answer(asked: dict[str, Any]) -> None:
    """Make a call and write its answer."""
    try:
        say({"id": asked["id"], "result": CALLS[asked["call"]](asked)})
    except Exception as error:
        say({"id": asked["id"], "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Answer calls until the input ends."""
    with ThreadPoolExecutor(THREADS) as pool:
        for line in sys.stdin:
            pool.submit(answer, json.loads(line))
    os._exit(0)  # the client's threads are not daemons


main()
