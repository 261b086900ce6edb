"""Offsets of queues, and their JSON.

A stream's offsets are `{"v":1,"topics":{"T":{"broker-a":{"0":23}}}}`. Keys are sorted, so equal offsets are equal
texts. A checkpoint also has `groups`, the recorded identities of broker groups, and `planned`, the time in ms at which
a micro-batch was planned. `created`, `{"T":{"broker-a":4711}}`, says to which creation of each topic the offsets
belong: a topic that is deleted and made again is another topic. With `mode=auto` there is `mode`, the choice. The first
checkpoint of a query has `begins`, the offsets at which it begins. Earlier versions wrote none of these fields, and
ignore them.

Options accept this form, the same without `v` and `topics`, and the flat form of Spark's Kafka source,
`{"T":{"0":23}}`, where there is one broker group.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .errors import OptionError, SourceError

EARLIEST: Final = -2
LATEST: Final = -1
VERSION: Final = 1
MAX_NUMBER: Final = 2**63 - 1
"""Offsets and times have 64 bits on the wire."""
QUEUES_PER_GROUP: Final = 65_536
"""A `partition` is the broker group's ordinal times this, plus the queue id."""

OffsetJson: TypeAlias = dict[str, Any]


class Queue(NamedTuple):
    """One queue of a topic on one broker group."""

    topic: str
    group: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.group}/{self.queue_id}"


Offsets: TypeAlias = dict[Queue, int]
StreamMode: TypeAlias = Literal["segments", "queues"]
Creations: TypeAlias = dict[tuple[str, str], int]
"""The creation of each topic, by topic and broker group."""


def to_json(
    offsets: Mapping[Queue, int],
    identities: Mapping[str, str] | None = None,
    planned_ms: int | None = None,
    creations: Mapping[tuple[str, str], int] | None = None,
    mode: StreamMode | None = None,
) -> OffsetJson:
    """Return offsets for a checkpoint of Spark, with the identities of broker groups and the time of planning.

    `creations` may name more topics than the offsets do. `mode` is the chosen mode.
    """
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.group, {})[str(queue.queue_id)] = offsets[queue]
    document: OffsetJson = {"v": VERSION, "topics": topics}
    known_identities = {group: identity for group, identity in sorted((identities or {}).items()) if identity}
    if known_identities:
        document["groups"] = known_identities
    created: dict[str, dict[str, int]] = {}
    for (topic, group), number in sorted((creations or {}).items()):
        if group in topics.get(topic, {}):
            created.setdefault(topic, {})[group] = number
    if created:
        document["created"] = created
    if mode is not None:
        document["mode"] = mode
    if planned_ms is not None:
        document["planned"] = planned_ms
    return document


def creations_in(document: Mapping[str, Any]) -> Creations:
    """Return the creations of topics in a checkpoint's offsets; none from an earlier version."""
    try:
        return {
            (topic, group): int(number)
            for topic, groups in document.get("created", {}).items()
            for group, number in groups.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise SourceError(f"the creations of topics cannot be read: {error!r} in {document}") from error


def identities_in(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the identities of broker groups in a checkpoint's offsets; none from an earlier version."""
    groups = document.get("groups", {})
    if not isinstance(groups, dict) or not all(isinstance(identity, str) for identity in groups.values()):
        raise SourceError(f"the identities of broker groups cannot be read: {document}")
    return dict(groups)


def mode_in(document: Mapping[str, Any]) -> StreamMode | None:
    """Return how a stream with `mode=auto` reads by its checkpoint; None if that is not chosen."""
    mode = document.get("mode")
    return mode if mode in ("segments", "queues") else None


def planned_ms_in(document: Mapping[str, Any]) -> int | None:
    """Return when a micro-batch was planned that ends at these offsets; None if the offsets do not have the time."""
    planned = document.get("planned")
    return planned if isinstance(planned, int) else None


def from_json(document: Mapping[str, Any]) -> Offsets:
    """Return the offsets of a checkpoint. Raises `SourceError` for another version or unreadable offsets."""
    if document.get("v") != VERSION:
        raise SourceError(f"offsets of version {document.get('v')!r} cannot be read, only {VERSION}: {document}")
    try:
        return {
            Queue(topic, group, int(queue_id)): int(offset)
            for topic, groups in document["topics"].items()
            for group, queues in groups.items()
            for queue_id, offset in queues.items()
        }
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise SourceError(f"offsets cannot be read: {error!r} in {document}") from error


class QueueNumbers:
    """Numbers by queue as an option gives them, not yet laid over the groups that exist."""

    def __init__(self, option: str, text: str, topics: Mapping[str, Mapping[str, Any]]) -> None:
        self.option = option
        self.text = text
        self._topics = topics

    @classmethod
    def parse(cls, option: str, text: str, minimum: int) -> QueueNumbers:
        """Read an option's JSON, with no number below `minimum`. Raises `OptionError`."""
        allowed = (
            'JSON such as {"topic":{"broker-a":{"0":23}}} or, with one broker group, {"topic":{"0":23}}, '
            f"with numbers from {minimum} on, up to {MAX_NUMBER}"
        )
        try:
            document = json.loads(text)
            topics = document.get("topics") if document.get("v") == VERSION else document
            for groups in topics.values():
                for name, value in groups.items():
                    for queue_id, number in value.items() if isinstance(value, Mapping) else ((name, value),):
                        int(queue_id)
                        _check_integer(number, minimum)
        except (ValueError, AttributeError, TypeError) as error:
            raise OptionError(option, text, f"allowed is {allowed}") from error
        return cls(option, text, topics)

    def resolve(self, queues: Collection[Queue]) -> Offsets:
        """Return the number of each of `queues`. Raises `OptionError` if a queue has none, or another queue has one."""
        groups = sorted({queue.group for queue in queues})
        numbers: Offsets = {}
        for topic, value in self._topics.items():
            for name, inner in value.items():
                if isinstance(inner, Mapping):
                    numbers |= {Queue(topic, name, int(queue_id)): int(n) for queue_id, n in inner.items()}
                elif len(groups) == 1:
                    numbers[Queue(topic, groups[0], int(name))] = int(inner)
                else:
                    raise self._error(f"there are {len(groups)} broker groups, so name them: {', '.join(groups)}")
        _check_same_queues(self, queues, numbers)
        return numbers

    def _error(self, allowed: str) -> OptionError:
        return OptionError(self.option, self.text, allowed)

    def missing(self, queues: Iterable[Queue]) -> OptionError:
        """Return the error for queues without a number."""
        return self._error(f"every queue that is read must be named, missing: {', '.join(map(str, sorted(queues)))}")

    def unknown(self, queues: Iterable[Queue]) -> OptionError:
        """Return the error for queues that are not read."""
        return self._error(f"these queues are not read: {', '.join(map(str, sorted(queues)))}")


def _check_same_queues(numbers: QueueNumbers, queues: Collection[Queue], offsets: Offsets) -> None:
    if missing := set(queues) - set(offsets):
        raise numbers.missing(missing)
    if unknown := set(offsets) - set(queues):
        raise numbers.unknown(unknown)


def _check_integer(value: object, minimum: int) -> None:
    """Raise ValueError unless `value` is an integer from `minimum` on that fits into 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r} is no integer from {minimum} to {MAX_NUMBER}")
