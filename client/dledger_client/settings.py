"""Settings of consumers in groups: delivery, sharing of queues, reading ahead, and time limits.

A consumer takes a group as one argument, or a setting by its own name. So `read_ahead=ReadAhead(max_span=2000)` and
`max_span=2000` mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self, TypedDict, TypeVar

import msgspec

from .arguments import above_zero, at_least
from .consuming.flow import ReadAhead
from .consuming.offers import Priority
from .consuming.offsets import StartFrom, check_start
from .consuming.rebalance import Strategy, StrategyName
from .consuming.takers import CLOSE_TIMEOUT_SECONDS
from .errors import InvalidArgumentError

GroupT = TypeVar("GroupT", bound=msgspec.Struct)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery of messages: how they are handed out and finished, and what follows if they fail.

    With `auto_ack` a task that iterates finishes its message by asking for the next one, and a handler by returning.
    Without, only `message.ack()` and `message.retry()` do.

    With `orderly`, messages of one queue are handled one after another, and a failed message is tried again before its
    successors. `queue_locks` has an orderly consumer lock its queues, as `OrderlyConsumer` describes.

    With `priority=True` messages of queues with higher ids come first, and messages of lower ids once these queues are
    drained. A function can return another priority for a queue.

    A failed message comes again at most `max_reconsume_times` times. None: as often as the group's settings say, or 16
    times with `orderly`. A message whose body cannot be read stops its queue and is logged; with `keep_unreadable` it
    comes with a `fault`.
    """

    auto_ack: bool = True
    orderly: bool = False
    queue_locks: bool = False
    priority: bool | Priority = False
    max_reconsume_times: int | None = None
    keep_unreadable: bool = False


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Sharing of queues among the members of a group, and the start of each queue.

    `strategy` shares the queues among the members (module `consuming.rebalance`); all members need the same. With
    `broadcast` every member reads all queues. Its offsets are kept in `offset_file`, and failed messages do not come
    again. `start_from` is the start of a group that has committed nothing: `"first"`, `"last"`, or a time in ms.
    """

    start_from: StartFrom = "first"
    strategy: StrategyName | Strategy = "average"
    broadcast: bool = False
    offset_file: Path | None = None


class TimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of a consumer, in seconds.

    `start` raises an error if no name server answers within `start_timeout` (None: it may come later). `close` waits
    for messages in work for at most `close_timeout`. If nobody takes or finishes a queue's messages for `warn_after`,
    the queue is logged, at that interval, and counted (`stalled`).
    """

    start_timeout: float | None = 10.0
    close_timeout: float = CLOSE_TIMEOUT_SECONDS
    warn_after: float = 60.0


class SettingsByName(TypedDict, total=False):
    """The settings of all groups, each by its own name."""

    auto_ack: bool
    orderly: bool
    queue_locks: bool
    priority: bool | Priority
    max_reconsume_times: int | None
    keep_unreadable: bool
    start_from: StartFrom
    strategy: StrategyName | Strategy
    broadcast: bool
    offset_file: Path | None
    pull_batch_size: int
    max_outstanding: int
    max_outstanding_bytes: int
    max_span: int | None
    max_topic_outstanding: int | None
    max_topic_bytes: int | None
    start_timeout: float | None
    close_timeout: float
    warn_after: float


class ConsumerSettings(NamedTuple):
    """The groups of one consumer's settings."""

    delivery: Delivery
    sharing: Sharing
    read_ahead: ReadAhead
    times: TimeLimits

    @classmethod
    def gathered(
        cls,
        delivery: Delivery | None,
        sharing: Sharing | None,
        read_ahead: ReadAhead | None,
        times: TimeLimits | None,
        by_name: SettingsByName,
    ) -> Self:
        """Return the groups, made of the settings by name where a group is None.

        Raises `InvalidArgumentError` for settings that make no sense, or that are given in a group and by name.
        Raises `TypeError` for a name that no group has.
        """
        given = dict(by_name)
        for name in given:
            if name not in SettingsByName.__annotations__:
                raise TypeError(f"PushConsumer.__init__() got an unexpected keyword argument {name!r}")
        found = cls(
            _group("delivery", Delivery, delivery, given),
            _group("sharing", Sharing, sharing, given),
            _group("read_ahead", ReadAhead, read_ahead, given),
            _group("times", TimeLimits, times, given),
        )
        found._check()
        return found

    def _check(self) -> None:
        delivery, sharing, times = self.delivery, self.sharing, self.times
        at_least(0, max_reconsume_times=delivery.max_reconsume_times, close_timeout=times.close_timeout)
        above_zero(start_timeout=times.start_timeout, warn_after=times.warn_after)
        if sharing.broadcast != (sharing.offset_file is not None):
            raise InvalidArgumentError("offset_file belongs to broadcast consumers, which keep their offsets in it")
        if delivery.queue_locks and (sharing.broadcast or not delivery.orderly):
            raise InvalidArgumentError("queue_locks are for orderly consumers that share their queues")
        check_start(sharing.start_from)
        self.read_ahead.check()


def _group(name: str, kind: type[GroupT], group: GroupT | None, given: Mapping[str, object]) -> GroupT:
    own: Final = {field: given[field] for field in kind.__struct_fields__ if field in given}
    if group is None:
        return kind(**own)
    if own:
        raise InvalidArgumentError(f"{', '.join(own)} and {name} are both given: set it in {name}={kind.__name__}(...)")
    return group
