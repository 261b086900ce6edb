"""Batches: the messages of one call, apart by their ordering keys, and the results together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .errors import SendError
from .messages import Message
from .outgoing import OutgoingEncoder
from .results import SendResult
from .wire import Outgoing


class Part(NamedTuple):
    """Messages with one ordering key, or without any: their places in the call, and what is sent of them.

    `unique_key` is what the first one's sender has named it by.
    """

    ordering_key: str | None
    places: list[int]
    requests: list[Outgoing]
    unique_key: str | None


def parts_of(
    encoder: OutgoingEncoder,
    topic: str,
    messages: Sequence[Message | bytes],
    ordering_key: str | None,
    *,
    idempotent: bool,
) -> list[Part]:
    """The parts of a call, `ordering_key` being that of messages that have none. Raises `InvalidArgumentError`."""
    places: dict[str | None, list[int]] = {}
    for place, message in enumerate(messages):
        own = message.ordering_key if isinstance(message, Message) else None
        places.setdefault(ordering_key if own is None else own, []).append(place)
    parts: list[Part] = []
    for key, at in places.items():
        chosen = messages if len(places) == 1 else [messages[place] for place in at]
        first = chosen[0]
        requests = encoder.encode_batches(topic, chosen, idempotent=idempotent)
        parts.append(Part(key, at, requests, first.unique_key if isinstance(first, Message) else None))
    return parts


def results_of(parts: Sequence[Part], ended: Sequence[list[SendResult] | BaseException]) -> list[SendResult]:
    """The results of all messages, in their order.

    Raises what ended the first part that did not come to its end; a `SendError` has all results that there are.
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
