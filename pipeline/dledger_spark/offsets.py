"""Offsets of queues, and their JSON.

A stream's offsets are `{"v":1,"topics":{"T":{"broker-a":{"0":23}}}}`; keys are sorted, so equal offsets are equal
texts. Options accept this form, the same without `v` and `topics`, and the flat form of Spark's Kafka source,
`{"T":{"0":23}}`, where there is one broker group.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

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


def to_json(offsets: Mapping[Queue, int]) -> OffsetJson:
    """Offsets as Spark writes them to a checkpoint."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.group, {})[str(queue.queue_id)] = offsets[queue]
    return {"v": VERSION, "topics": topics}


def from_json(document: Mapping[str, Any]) -> Offsets:
    """Offsets as a checkpoint has them. Raises `SourceError` if they are of another version or cannot be read."""
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
        """The number of each of `queues`. Raises `OptionError` if one has none, or if another is named."""
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
        _same(self, queues, numbers)
        return numbers

    def _error(self, allowed: str) -> OptionError:
        return OptionError(self.option, self.text, allowed)

    def missing(self, queues: Iterable[Queue]) -> OptionError:
        """The error for queues without a number."""
        return self._error(f"every queue that is read must be named, missing: {', '.join(map(str, sorted(queues)))}")

    def unknown(self, queues: Iterable[Queue]) -> OptionError:
        """The error for queues that are not read."""
        return self._error(f"these queues are not read: {', '.join(map(str, sorted(queues)))}")


def _same(numbers: QueueNumbers, queues: Collection[Queue], found: Offsets) -> None:
    if missing := set(queues) - set(found):
        raise numbers.missing(missing)
    if unknown := set(found) - set(queues):
        raise numbers.unknown(unknown)


def _check_integer(value: object, minimum: int) -> None:
    """Raise ValueError unless `value` is an integer from `minimum` on that fits into 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r} is no integer from {minimum} to {MAX_NUMBER}")
