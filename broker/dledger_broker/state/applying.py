"""Application of commands to the state: the one place where commands take effect."""

from __future__ import annotations

from dledger.format import COMMAND_HEADER_BYTES, iter_commands, only_kind
from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import FIRST_KIND, CommandRegistry
from dledger_broker.kernel.members import Features, SetOrdinal
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.state.groups import DeleteGroup, PutGroup
from dledger_broker.state.offsets import CommitOffsets, DeleteOffsets
from dledger_broker.state.pins import DeletePins, Pin, PutPin
from dledger_broker.state.remembered import LimitSends
from dledger_broker.state.tables import BrokerState


class Applied:
    """What the commands of some entries changed, besides topics, which `TopicTable.version` counts."""

    __slots__ = ("commits", "deleted_topics", "features_changed", "groups_changed")

    def __init__(self) -> None:
        self.commits: list[CommitOffsets] = []
        self.deleted_topics: list[TopicState] = []
        self.features_changed = False
        self.groups_changed = False


def apply_commands(state: BrokerState, entry: CommittedEntry, applied: Applied, commands: CommandRegistry) -> None:
    """Apply an entry's commands in their order. Raises `CorruptionError` for one that this version does not know."""
    only = only_kind(entry.commands)
    raw = None if only is None else state.raw_handlers.get(only)
    if raw is not None:  # the only command that ordinary entries have takes a short way
        raw(entry.commands[COMMAND_HEADER_BYTES:], entry)
        return
    for kind, payload in iter_commands(entry.commands):
        if kind < FIRST_KIND:
            continue
        raw = state.raw_handlers.get(kind)
        if raw is not None:
            raw(payload, entry)
            continue
        match commands.decode(kind, payload):
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
