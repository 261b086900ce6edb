"""Messages of kombu as bodies of messages in the log: a JSON object, as in kombu's other virtual transports.

| field | |
|---|---|
| `body` | the serialized content, by default in Base64 |
| `content-type`, `content-encoding`, `headers` | as kombu has them |
| `properties` | `correlation_id`, `reply_to`, `priority`, `delivery_mode`, `delivery_info`, `body_encoding`, … |

A delivery tag is made where a message is delivered. So a message that is sent again has the same body, by which the
brokers know a repetition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from dledger_client import Message, ReceivedMessage

Untyped: TypeAlias = Any
"""A value of kombu, which has no types."""
Payload: TypeAlias = dict[str, Any]
"""A message as kombu's virtual channels have it."""

HELD_SECONDS: Final = 60.0
"""Maximum time in seconds that a worker holds a task that has come before its time, because clocks differ."""
STEP_SHARE: Final = 0.99
"""Share of the longest delay after which a message is sent again, if it is for later than that."""
TRANSIENT: Final = 1
"""Delivery mode of messages that need not survive their broker."""


def encode(payload: Payload) -> bytes:
    """Return the body of a message in the log. Raises `TypeError` for what JSON cannot have."""
    properties = {name: value for name, value in payload["properties"].items() if name != "delivery_tag"}
    text: str = dumps({**payload, "properties": properties})
    return text.encode()


def decode(body: bytes) -> Payload:
    """Return the message of a body, with a delivery tag of its own. Raises `ValueError` if it is no such message."""
    payload = loads(body)
    if not isinstance(payload, dict) or "body" not in payload:
        raise ValueError("no message of kombu: a JSON object with body and properties is expected")
    properties = payload.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_info"), dict):
        raise ValueError("no message of kombu: it has no properties with delivery_info")
    properties["delivery_tag"] = uuid()
    return payload


def decode_received(message: ReceivedMessage) -> Payload:
    """Return a received message, and whether it was delivered before. Raises `ValueError`."""
    payload = decode(message.body)
    info = payload["properties"]["delivery_info"]
    info["redelivered"] = message.reconsume_times > 0
    info["deliveries"] = message.reconsume_times + 1
    return payload


def make_message(payload: Payload, longest_delay: float, now: float) -> Message:
    """Return the message to send at `now`, in seconds since 1970.

    A task has its id as key, and its id and retry number as unique key. A task with an ETA is for later.
    """
    due = due_time(payload, longest_delay, now)
    task_id, unique_key = identity(payload)
    return Message(
        encode(payload),
        key=task_id,
        unique_key=unique_key,
        deliver_at=None if due is None else math.ceil(due * 1000),
    )


def identity(payload: Payload) -> tuple[str | None, str | None]:
    """Return the key of a message, and the unique key by which a repeated send is known.

    Both are None without an id.
    """
    headers: Mapping[str, Any] = payload.get("headers") or {}
    if headers.get("task") and headers.get("id"):
        task_id = quote(str(headers["id"]))
        return task_id, f"{task_id}:{headers.get('retries') or 0}"
    message_id = payload["properties"].get("message_id")
    return (quote(str(message_id)), quote(str(message_id))) if message_id else (None, None)


def due_time(payload: Payload, longest_delay: float, now: float) -> float | None:
    """Return the time at which the broker is to deliver a message with an ETA; None: now.

    The broker keeps a message at most `longest_delay` seconds. So a message for later than that comes to a worker in
    between, which sends it again. Those times are whole steps before the ETA: two workers that send it again choose the
    same. A step is a little shorter than `longest_delay`, because the broker's clock may be behind.
    """
    eta = eta_of(payload)
    if eta is None or eta <= now:
        return None
    step = longest_delay * STEP_SHARE
    due = eta - (math.ceil((eta - now) / step) - 1) * step
    return due if due > now else None


def is_early(payload: Payload, now: float) -> bool:
    """Return whether a message has come so long before its ETA that it is to be sent again."""
    eta = eta_of(payload)
    return eta is not None and eta - now > HELD_SECONDS


def eta_of(payload: Payload) -> float | None:
    """Return the ETA in seconds since 1970; None without one, and for one without a time zone, which workers know."""
    eta = (payload.get("headers") or {}).get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None
    return eta.timestamp() if isinstance(eta, datetime) and eta.tzinfo is not None else None
