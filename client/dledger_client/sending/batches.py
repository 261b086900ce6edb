"""Batches: encodes the messages of one call, splits them by their ordering keys, and joins the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import SendError
from ..messages import Codec, Message, T, encoded
from ..results import SendResult
from .outgoing import OutgoingEncoder
from .wire import Outgoing


class Part(NamedTuple):
    """Messages of a batch with one ordering key, or without any: their places in the call, and their requests.

    `unique_key` is the unique key that the sender gave the first message.
    """

    ordering_key: str | None
    places: list[int]
    requests: list[Outgoing]
    unique_key: str | None


def encoded_batch(messages: Sequence[T | Message[T]], codec: Codec[T] | None) -> list[Message | bytes]:
    """Return messages with their bodies. Raises `InvalidArgumentError`, which says which of them has none."""
    bodies: list[Message | bytes] = []
    for place, message in enumerate(messages):
        if codec is None and isinstance(message, bytes):
            bodies.append(message)
        else:
            whole: Message[T] = message if isinstance(message, Message) else Message(message)
            bodies.append(encoded(whole, codec, f"messages[{place}]"))
    return bodies


def parts_of(
    encoder: OutgoingEncoder,
    topic: str,
    messages: Sequence[Message | bytes],
    ordering_key: str | None,
    *,
    idempotent: bool,
) -> list[Part]:
    """Split the messages of a call. `ordering_key` applies to messages without one. Raises `InvalidArgumentError`."""
    places: dict[str | None, list[int]] = {}
    for place, message in enumerate(messages):
        own_key = message.ordering_key if isinstance(message, Message) else None
        places.setdefault(ordering_key if own_key is None else own_key, []).append(place)
    parts: list[Part] = []
    for key, part_places in places.items():
        part_messages = messages if len(places) == 1 else [messages[place] for place in part_places]
        first = part_messages[0]
        requests = encoder.encode_batches(topic, part_messages, idempotent=idempotent)
        parts.append(Part(key, part_places, requests, first.unique_key if isinstance(first, Message) else None))
    return parts


def results_of(parts: Sequence[Part], ended: Sequence[list[SendResult] | BaseException]) -> list[SendResult]:
    """Return the results of all messages, in their order.

    Raises the error of the first part that failed. A `SendError` then has all results that there are.
    """
    results: dict[int, SendResult] = {}
    failure: BaseException | None = None
    for part, outcome in zip(parts, ended, strict=True):
        if not isinstance(outcome, BaseException):
            results.update(zip(part.places, outcome, strict=True))
            continue
        failure = failure or outcome
        if isinstance(outcome, SendError):
            results.update(zip(part.places, outcome.stored, strict=False))
    in_order = [results[place] for place in sorted(results)]
    if isinstance(failure, SendError):
        failure.stored = tuple(in_order)
    if failure is not None:
        raise failure
    return in_order
