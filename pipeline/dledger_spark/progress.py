"""A stream's progress as the offsets of a consumer group, so that every RocketMQ tool shows its lag.

The checkpoint alone decides where a stream continues; nothing reads these offsets back. A new query refuses a group
that others use, because they would skip messages. So groups of streams are marked with a hash of the subscription.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any, Final

from .errors import OptionError, RefusedError
from .offsets import Offsets, Queue
from .plans import GROUP_NOT_EXIST, Cluster
from .wire import Response

QUERY_CONSUMER_OFFSET: Final = 14
UPDATE_CONSUMER_OFFSET: Final = 15
GET_MEMBERS: Final = 38
UPDATE_GROUP: Final = 200
GET_GROUP: Final = 352
MARK: Final = "spark.progress"
"""The attribute of a group that names the owner of its offsets."""
PUBLISH_TIMEOUT_S: Final = 3.0
"""Time limit in seconds for publishing to one broker group. The stream waits during this time."""
_NO_MEMBERS: Final = 1
_NO_OFFSET: Final = 22
_ABSENT: Final = frozenset({GROUP_NOT_EXIST, _NO_MEMBERS, _NO_OFFSET})
"""Codes of answers if there is no group, no member, or no offset."""
_NEW_GROUP: Final = {"consumeBroadcastEnable": False}

_logger = logging.getLogger(__name__)


class ProgressPublisher:
    """Commits the changed offsets of a group; creates and marks the group where it has no mark.

    `mark` names the owner of the offsets. A query `is_new` if it has no checkpoint yet.
    """

    def __init__(self, group_id: str, mark: str, *, is_new: bool) -> None:
        self._group_id = group_id
        self._mark = mark
        self._is_new = is_new
        self._published: Offsets = {}
        self._marked_groups: set[str] = set()

    def claim(self, cluster: Cluster, queues: Iterable[Queue]) -> None:
        """Make sure that the group is the query's own, on each broker group of `queues`.

        Raises `OptionError` if a new query would take a group that has members or offsets of others; `SourceError` if
        that cannot be seen.
        """
        queues = sorted(queues)
        for broker_group in sorted({queue.group for queue in queues} - self._marked_groups):
            group_queues = [queue for queue in queues if queue.group == broker_group]
            (answer,) = _ask(cluster, broker_group, GET_GROUP, [{"group": self._group_id}])
            config: dict[str, Any] = json.loads(answer.body) if answer.code == 0 else {**_NEW_GROUP}
            if config.get("attributes", {}).get(MARK) != self._mark:
                if answer.code == 0:
                    self._check_other_use(self._find_other_use(cluster, broker_group, group_queues))
                config |= {"groupName": self._group_id, "attributes": {f"+{MARK}": self._mark}}
                body = json.dumps(config).encode()
                cluster.ask(broker_group, UPDATE_GROUP, [{}], body, timeout_s=PUBLISH_TIMEOUT_S)
            self._marked_groups.add(broker_group)

    def _find_other_use(self, cluster: Cluster, broker_group: str, queues: list[Queue]) -> str | None:
        """Return a sentence on others' use of the group, None without a sign of use."""
        (members,) = _ask(cluster, broker_group, GET_MEMBERS, [{"consumerGroup": self._group_id}])
        if members.code == 0 and json.loads(members.body or b"{}").get("consumerIdList"):
            return "it has members, who would skip messages"
        requests = [{**_queue_fields(self._group_id, queue), "setZeroIfNotFound": "false"} for queue in queues]
        answers = _ask(cluster, broker_group, QUERY_CONSUMER_OFFSET, requests)
        committed = [queue for queue, answer in zip(queues, answers, strict=True) if answer.code == 0]
        return f"it has offsets of {committed[0]} that this query has not published" if committed else None

    def _check_other_use(self, use: str | None) -> None:
        if use is None:
            return
        if self._is_new:
            raise OptionError(
                "groupId", self._group_id, f"{use}: publish progress as a group that nobody consumes with"
            )
        _logger.warning(
            "group=%s event=group_of_others consequence='its offsets are overwritten' use=%r", self._group_id, use
        )

    def publish(self, cluster: Cluster, offsets: Offsets) -> None:
        """Commit `offsets`. Raises what `claim` raises, and `SourceError` if a broker group cannot be reached."""
        self.claim(cluster, offsets)
        changed = {queue: offset for queue, offset in sorted(offsets.items()) if self._published.get(queue) != offset}
        for broker_group in sorted({queue.group for queue in changed}):
            group_offsets = {queue: offset for queue, offset in changed.items() if queue.group == broker_group}
            try:
                self._commit(cluster, broker_group, group_offsets)
            except RefusedError as error:
                if error.code == GROUP_NOT_EXIST:  # deleted since: made again with the next progress
                    self._marked_groups.discard(broker_group)
                raise
            self._published |= group_offsets

    def _commit(self, cluster: Cluster, broker_group: str, offsets: Offsets) -> None:
        commits = [
            {**_queue_fields(self._group_id, queue), "commitOffset": str(offset)} for queue, offset in offsets.items()
        ]
        cluster.ask(broker_group, UPDATE_CONSUMER_OFFSET, commits, timeout_s=PUBLISH_TIMEOUT_S)


def _ask(cluster: Cluster, broker_group: str, code: int, requests: list[dict[str, str]]) -> list[Response]:
    return cluster.ask(broker_group, code, requests, timeout_s=PUBLISH_TIMEOUT_S, allowed=_ABSENT)


def _queue_fields(group_id: str, queue: Queue) -> dict[str, str]:
    return {"consumerGroup": group_id, "topic": queue.topic, "queueId": str(queue.queue_id)}
