"""Text of consumer groups for people, as `group list` and `group describe` print it."""

from __future__ import annotations

from collections.abc import Sequence

from ..operations.consumer_groups import GroupDescription, GroupLine, QueueProgress
from ..output import columns


def render_list(result: Sequence[GroupLine]) -> str:
    """Return a table."""
    if not result:
        return "there are no consumer groups: the first consumer of a group makes it"
    rows = [
        (line.group, line.state, line.members, line.lag, "yes" if line.may_consume else "no", line.max_retries)
        for line in result
    ]
    return columns(("group", "state", "members", "lag", "may consume", "retries"), rows)


def render_description(result: GroupDescription) -> str:
    """Return a table of members, if there are any, a table of queues, and a summary."""
    parts: list[str] = []
    if result.members:
        members = [
            (
                member.client_id,
                member.address,
                member.language,
                ", ".join(f"{topic}: {expression}" for topic, expression in member.subscriptions.items()),
            )
            for member in result.members
        ]
        parts += [columns(("member", "address", "language", "subscribes to"), members), ""]
    queues = [
        (
            queue.topic,
            queue.broker_group,
            queue.queue_id,
            queue.first,
            queue.end,
            queue.committed,
            queue.lag,
            _format_reader(queue),
        )
        for queue in result.queues
    ]
    header = ("topic", "broker group", "queue", "first", "end", "committed", "lag", "last read by")
    parts += [columns(header, queues), f"{result.state}, {result.lag} messages behind"]
    if result.broadcast:
        parts.append("broadcast: every member reads all queues, and keeps its offsets itself")
    if result.state == "inconsistent":
        parts.append(
            "members subscribe to different things: give all of them the same topics and tags, or messages are missed"
        )
    return "\n".join(parts)


def _format_reader(queue: QueueProgress) -> str | None:
    """Return the reader of a queue. A reader without heartbeats is known by its address alone."""
    if queue.reader_address is None or queue.idle_seconds is None:
        return None
    reader = ", ".join(queue.readers) or f"{queue.reader_address}, no member"
    return f"{reader} ({queue.idle_seconds:.0f} s ago)"
