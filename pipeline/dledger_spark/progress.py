"""A stream's progress as the offsets of a consumer group: what every RocketMQ tool shows as its lag.

The checkpoint alone decides where a stream goes on; nobody reads these offsets back.
"""

from __future__ import annotations

import json
from typing import Final

from .offsets import Offsets
from .plans import Cluster

UPDATE_CONSUMER_OFFSET: Final = 15
UPDATE_GROUP: Final = 200


class ProgressPublisher:
    """Commits offsets for a group, those that changed only; creates the group on every broker group first."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._published: Offsets = {}
        self._created: set[str] = set()

    def publish(self, cluster: Cluster, offsets: Offsets) -> None:
        """Commit `offsets`. Raises `SourceError` if a broker group cannot be reached."""
        changed = {queue: offset for queue, offset in sorted(offsets.items()) if self._published.get(queue) != offset}
        for broker_group in sorted({queue.group for queue in changed}):
            if broker_group not in self._created:
                body = json.dumps({"groupName": self._group_id, "consumeBroadcastEnable": False}).encode()
                cluster.ask(broker_group, UPDATE_GROUP, [{}], body)
                self._created.add(broker_group)
            mine = {queue: offset for queue, offset in changed.items() if queue.group == broker_group}
            cluster.ask(
                broker_group,
                UPDATE_CONSUMER_OFFSET,
                [
                    {
                        "consumerGroup": self._group_id,
                        "topic": queue.topic,
                        "queueId": str(queue.queue_id),
                        "commitOffset": str(offset),
                    }
                    for queue, offset in mine.items()
                ],
            )
            self._published |= mine
