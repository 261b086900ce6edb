"""Application of commands to the state: the one place where commands take effect."""

from __future__ import annotations

from dledger.format import COMMAND_HEADER_BYTES, iter_commands, only_kind
from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.queues import TopicState
from dledger_broker.state.commands import (
    KINDS,
    REMEMBER_SENDS,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeletePins,
    DeleteTopic,
    Features,
    LimitSends,
    PutGroup,
    PutPin,
    PutTopic,
    SetOrdinal,
    TrimQueues,
    decode,
    remembered_rows,
)
from dledger_broker.state.pins import Pin
from dledger_broker.state.tables import BrokerState
from dledger_remoting.record import STORE_TIMESTAMP_PLACE

FIRST_KIND = min(KINDS)
"""Command kinds below belong to the log."""


class Applied:
    """What the commands of some entries changed, besides topics, which `TopicTable.version` counts."""

    __slots__ = ("commits", "deleted_topics", "features_changed", "groups_changed")

    def __init__(self) -> None:
        self.commits: list[CommitOffsets] = []
        self.deleted_topics: list[TopicState] = []
        self.features_changed = False
        self.groups_changed = False


def apply_commands(state: BrokerState, entry: CommittedEntry, applied: Applied) -> None:
    """Apply an entry's commands in their order. Raises `CorruptionError` for one that this version does not know."""
    if only_kind(entry.commands) == REMEMBER_SENDS:  # the only one that ordinary entries have: it takes a short way
        _remember(state, entry, entry.commands[COMMAND_HEADER_BYTES:])
        return
    for kind, payload in iter_commands(entry.commands):
        if kind < FIRST_KIND:
            continue
        if kind == REMEMBER_SENDS:
            _remember(state, entry, payload)
            continue
        match decode(kind, payload):
            case CommitOffsets(offsets=offsets) as commits:
                for group, topic, queue_id, offset in offsets:
                    state.offsets.commit(group, topic, queue_id, offset)
                applied.commits.append(commits)
            case PutTopic(config=topic_config):
                state.topic_table.put(topic_config, entry.end)
            case DeleteTopic(topic=name):
                deleted = state.delete_topic(name)
                if deleted is not None:
                    applied.deleted_topics.append(deleted)
            case PutGroup(config=group_config):
                state.group_table.put(group_config)
                applied.groups_changed = True
            case DeleteGroup(group=name, clean_offsets=clean):
                state.delete_group(name, clean_offsets=clean)
                applied.groups_changed = True
            case DeleteOffsets(pairs=pairs):
                for group, topic in pairs:
                    state.offsets.remove(group, topic)
            case TrimQueues(before_position=before_position, first_offsets=first_offsets):
                state.trims.raise_to(before_position)
                for row in first_offsets:
                    state.topic_table.trim_queue(*row)
            case Features(node_id=node_id, kinds=kinds):
                state.members.put(node_id, kinds)
                applied.features_changed = True
            case SetOrdinal(ordinal=ordinal):
                state.members.set_ordinal(ordinal)
            case PutPin(name=name, position=position, lease_ms=lease_ms, renewed_ms=renewed_ms):
                state.pins.put(Pin(name, position, lease_ms, renewed_ms))
            case DeletePins(names=names):
                state.pins.remove(names)
            case LimitSends(window_ms=window_ms, max_rows=max_rows):
                state.remembered.limit(window_ms, max_rows)


def _remember(state: BrokerState, entry: CommittedEntry, rows: bytes | memoryview) -> None:
    state.remembered.remember(remembered_rows(rows), store_timestamp_of(entry))


def store_timestamp_of(entry: CommittedEntry) -> int:
    """The store time, ms, of an entry's first record, whose hosts are IPv4, as the broker writes them."""
    return int.from_bytes(entry.records[STORE_TIMESTAMP_PLACE : STORE_TIMESTAMP_PLACE + 8], "big")
