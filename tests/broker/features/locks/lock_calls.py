"""A broker that takes queue locks, and its clients' requests about them."""

from __future__ import annotations

import json

from served_broker import FakeClient, ServedBroker

from dledger_broker.features.locks.table import LOCKS, LockKey, LockTable
from dledger_remoting.command import RemotingCommand
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.broker.features.locks.lock_bodies import lock_body

LOCK, UNLOCK, UNREGISTER, RELEASE_ALL = 41, 42, 35, 20016
T1_0 = ("T1", 0)


def with_groups(broker: ServedBroker, *groups: str) -> ServedBroker:
    """Have groups exist."""
    for group in groups or ("CG",):
        broker.groups.put_group(SubscriptionGroupConfig(group), lambda _: None)
    broker.settle()
    return broker


def granted(answer: RemotingCommand) -> set[tuple[str, int]]:
    """The queues that an answer to 41 grants."""
    assert answer.code == 0, answer.remark
    return {(queue["topic"], queue["queueId"]) for queue in json.loads(answer.body)["lockOKMQSet"]}


def lock(client: FakeClient, client_id: str, *queues: tuple[str, int], group: str = "CG") -> set[tuple[str, int]]:
    """Ask for queues, T1/0 if none is named; returns those that are granted."""
    return granted(client.call(LOCK, body=lock_body(client_id, *(queues or (T1_0,)), group=group)))


def unlock(client: FakeClient, client_id: str, *queues: tuple[str, int], group: str = "CG") -> None:
    """Give queues up, T1/0 if none is named."""
    answer = client.call(UNLOCK, body=lock_body(client_id, *(queues or (T1_0,)), group=group))
    assert answer.code == 0, answer.remark


def locks_of(broker: ServedBroker) -> LockTable:
    return broker.memory.machine.state.table(LOCKS)


def owner_of(broker: ServedBroker, topic: str = "T1", queue_id: int = 0, group: str = "CG") -> str | None:
    """The client that has a queue, by what is applied."""
    owner = locks_of(broker).owner(LockKey(group, topic, queue_id))
    return owner.client_id if owner else None
