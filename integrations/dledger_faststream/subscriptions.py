"""Subscriptions: what a subscriber reads, and how. Their rules are checked where the subscriber is declared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from faststream import AckPolicy
from faststream.exceptions import SetupError

from dledger_client import Filter, StartFrom

from .internals import EMPTY

Mode: TypeAlias = Literal["push", "ordered", "broadcast", "simple"]
"""Kind of consumer: shared queues, shared queues in order, all queues for every member, or messages one by one."""

_MODES: Final = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics and the consumer of one subscriber. Times are in seconds; topics have their routers' prefixes.

    `filter` selects messages by tags (`"a || b"`), `Sql` or a `ClassFilter`. `offset_file` belongs to the mode
    "broadcast", `invisible` to "simple".
    """

    topics: tuple[str, ...]
    group: str
    mode: Mode = "push"
    filter: Filter = "*"
    max_workers: int = 1
    batch: bool = False
    start_from: StartFrom = "first"
    max_reconsume_times: int | None = None
    offset_file: Path | None = None
    invisible: float = 30.0
    close_timeout: float = 15.0

    def check(self) -> None:
        """Raise `SetupError` if the parts do not fit together. Topics, group and filter are checked by the client."""
        if not self.topics:
            raise SetupError(f"the subscriber of group {self.group!r} has no topic: name one")
        self._require(self.mode in _MODES, f"mode={self.mode!r} is none of {', '.join(_MODES)}")
        self._require(self.max_workers >= 1, f"max_workers={self.max_workers}: at least 1 is needed")
        self._require(
            (self.mode == "broadcast") == (self.offset_file is not None),
            "mode='broadcast' and offset_file belong together: each member keeps its offsets in a file",
        )
        if self.mode == "simple":
            self._require(len(self.topics) == 1, "mode='simple' reads one topic: declare one subscriber for each")
            self._require(
                self.start_from in {"first", "last"},
                f"mode='simple' starts from 'first' or 'last', not {self.start_from}",
            )
            self._require(
                self.max_reconsume_times is None,
                "mode='simple' has the limit of the group's settings: give no max_reconsume_times",
            )
        if self.batch:
            self._require(self.mode != "ordered", "mode='ordered' hands out single messages of a queue: give no batch")
            self._require(self.max_workers == 1, "a batch subscriber has one batch in work: give no max_workers")

    def check_policy(self, policy: AckPolicy) -> None:
        """Raise `SetupError` if an acknowledgement policy breaks what the mode promises."""
        self._require(
            self.mode != "ordered" or policy is not AckPolicy.ACK_FIRST,
            "mode='ordered' and AckPolicy.ACK_FIRST exclude each other: messages would overlap",
        )

    def check_beside(self, others: Iterable[Subscription]) -> None:
        """Raise `SetupError` if another subscriber of this program has the group for something else.

        Brokers share the queues of all topics among all members of a group. A member that does not read one of the
        topics would keep its queues of that topic from the others.
        """
        for other in others:
            if other.group != self.group or (self.mode == other.mode == "simple" and self.topics != other.topics):
                continue
            same = (sorted(other.topics), other.mode, other.filter) == (sorted(self.topics), self.mode, self.filter)
            self._require(
                same,
                f"another subscriber of the group reads {', '.join(other.topics)} with mode={other.mode!r} and "
                f"filter={other.filter!r}: all members of a group must read the same, so give each its own group",
            )

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise SetupError(f"subscriber of {', '.join(self.topics)} in group {self.group!r}: {otherwise}")


def policy_of(own: AckPolicy, outer: AckPolicy) -> AckPolicy:
    """Return a subscriber's policy: its own, that of its router or broker, or else NACK_ON_ERROR.

    By that a message that failed comes again, as with every consumer of RocketMQ.
    """
    for policy in (own, outer):
        if policy is not EMPTY:
            return policy
    return AckPolicy.NACK_ON_ERROR
