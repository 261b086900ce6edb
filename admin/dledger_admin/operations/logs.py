"""Logs of broker groups: how far they are verified, what was healed, what retention takes next, and what pins keep."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dledger_client import Admin

from .broker_groups import BrokerGroup, Replica


class PinLine(msgspec.Struct, frozen=True):
    """A pin: a reader that needs the log from a position on, until `expires_ms` (ms since 1970)."""

    name: str
    position: int
    expires_ms: int


class GroupLog(msgspec.Struct, frozen=True):
    """The log of a broker group on each node.

    `sentence` says whether all of it is sound. `retention` is what is deleted next, and when, if the leader tells.
    """

    broker_group: str
    sentence: str
    is_sound: bool
    replicas: list[Replica]
    retention: str | None
    pins: list[PinLine]


async def pins(admin: Admin) -> dict[str, list[PinLine]]:
    """Return the pins of each broker group."""
    return {
        group: [PinLine(row.name, row.position, row.expires) for row in rows]
        for group, rows in (await admin.pins()).items()
    }


def describe(group: BrokerGroup, pin_lines: Sequence[PinLine]) -> GroupLog:
    """Return the log of a broker group, out of what its nodes have told."""
    sentence, is_sound = _judge(group)
    return GroupLog(group.name, sentence, is_sound, group.replicas, group.retention, list(pin_lines))


def _judge(group: BrokerGroup) -> tuple[str, bool]:
    faults = [
        f"{replica.node} has {replica.corrupt_bytes or 0} corrupt bytes and {replica.rotten_snapshots or 0} rotten "
        "snapshots that no node has healed yet"
        for replica in group.replicas
        if replica.corrupt_bytes or replica.rotten_snapshots
    ]
    if faults:
        return "; ".join(faults), False
    silent = [replica.node for replica in group.replicas if replica.corrupt_bytes is None]
    if silent:
        return f"nothing corrupt is known; {', '.join(silent)} told nothing", True
    return "nothing corrupt is known", True
