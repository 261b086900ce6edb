"""Broker that takes queue locks, and its clients' requests about them."""

from __future__ import annotations

import json

from served_broker import FakeClient, ServedBroker

from dledger_broker.features.locks.table import LOCKS, LockKey
from dledger_remoting.command import RemotingCommand
from tests.broker.features.locks.lock_bodies import lock_body

LOCK, UNLOCK, UNREGISTER, RELEASE_ALL = 41, 42, 35, 20016
T1_0, T1_1, T1_2 = ("T1", 0), ("T1", 1), ("T1", 2)

Queue = tuple[str, int]


class Locker(FakeClient):
    """Client's connection. Its requests name T1/0 of group CG unless they name other queues."""

    def __init__(self, broker: ServedBroker, key: str, client_id: str) -> None:
        super().__init__(broker, key)
        self.client_id = client_id

    def elsewhere(self, key: str) -> Locker:
        """Return another connection of the client."""
        return Locker(self.broker, key, self.client_id)

    def lock(self, *queues: Queue, group: str = "CG", number: int | None = None, session: str = "s") -> set[Queue]:
        """Ask for queues, and return those that are granted."""
        return lock(self, self.client_id, *queues, group=group, number=number, session=session)

    def unlock(self, *queues: Queue, group: str = "CG", number: int | None = None, session: str = "s") -> None:
        unlock(self, self.client_id, *queues, group=group, number=number, session=session)

    def ask(self, *queues: Queue, code: int = LOCK, number: int | None = None) -> int:
        """Send a request for queues, and return its opaque."""
        return self.send(code, numbered(number), lock_body(self.client_id, *(queues or (T1_0,))))

    def answer_to(self, *queues: Queue, code: int = LOCK) -> RemotingCommand:
        """Send a request for queues, and return its answer."""
        return self.call(code, body=lock_body(self.client_id, *(queues or (T1_0,))))

    def granted(self, opaque: int) -> set[Queue]:
        return granted(self.answered(opaque))

    def leave(self) -> None:
        """Leave group CG."""
        ext = {"clientID": self.client_id, "producerGroup": "", "consumerGroup": "CG"}
        assert self.call(UNREGISTER, ext).code == 0

    def owner(self, queue_id: int = 0, group: str = "CG") -> str | None:
        """Return the client that owns a queue of T1 in the applied state."""
        owner = self.broker.table(LOCKS).owner(LockKey(group, "T1", queue_id))
        return owner.client_id if owner else None


def with_groups(broker: ServedBroker, *groups: str) -> ServedBroker:
    """Make groups, by default CG."""
    for group in groups or ("CG",):
        broker.put_group(group)
    return broker


def granted(answer: RemotingCommand) -> set[Queue]:
    """Return the queues that an answer to 41 grants."""
    assert answer.code == 0, answer.remark
    return {(queue["topic"], queue["queueId"]) for queue in json.loads(answer.body)["lockOKMQSet"]}


def numbered(number: int | None, session: str = "s") -> dict[str, str]:
    """Return the ext fields of a request that its client has numbered, none for None."""
    return {} if number is None else {"lockSession": session, "lockNumber": str(number)}


def lock(
    client: FakeClient, client_id: str, *queues: Queue, group: str = "CG", number: int | None = None, session: str = "s"
) -> set[Queue]:
    """Ask for queues, by default T1/0, and return those that are granted."""
    body = lock_body(client_id, *(queues or (T1_0,)), group=group)
    return granted(client.call(LOCK, numbered(number, session), body=body))


def unlock(
    client: FakeClient, client_id: str, *queues: Queue, group: str = "CG", number: int | None = None, session: str = "s"
) -> None:
    """Give queues up, by default T1/0."""
    body = lock_body(client_id, *(queues or (T1_0,)), group=group)
    answer = client.call(UNLOCK, numbered(number, session), body=body)
    assert answer.code == 0, answer.remark
