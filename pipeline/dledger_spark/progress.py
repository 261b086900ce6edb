"""A stream's progress as the offsets of a consumer group: what every RocketMQ tool shows as its lag.

The checkpoint alone decides where a stream goes on; nobody reads these offsets back.
"""

from __future__ import annotations

import json
from typing import Final

from .errors import RefusedError
from .offsets import Offsets
from .plans import GROUP_NOT_EXIST, Cluster

UPDATE_CONSUMER_OFFSET: Final = 15
UPDATE_GROUP: Final = 200


class ProgressPublisher:
    """Commits offsets for a group, those that changed only; creates the group where it is missing."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._published: Offsets = {}

    def publish(self, cluster: Cluster, offsets: Offsets) -> None:
        """Commit `offsets`. Raises `SourceError` if a broker group cannot be reached."""
        changed = {queue: offset for queue, offset in sorted(offsets.items()) if self._published.get(queue) != offset}
        for broker_group in sorted({queue.group for queue in changed}):
            mine = {queue: offset for queue, offset in changed.items() if queue.group == broker_group}
            try:
                self._commit(cluster, broker_group, mine)
            except RefusedError as error:
                if error.code != GROUP_NOT_EXIST:
                    raise
                body = json.dumps({"groupName": self._group_id, "consumeBroadcastEnable": False}).encode()
                cluster.ask(broker_group, UPDATE_GROUP, [{}], body)
                self._commit(cluster, broker_group, mine)
            self._published |= mine

    def _commit(self, cluster: Cluster, broker_group: str, offsets: Offsets) -> None:
        commits = [
            {
                "consumerGroup": self._group_id,
                "topic": queue.topic,
                "queueId": str(queue.queue_id),
                "commitOffset": str(offset),
            }
            for queue, offset in offsets.items()
        ]
        cluster.ask(broker_group, UPDATE_CONSUMER_OFFSET, commits)
