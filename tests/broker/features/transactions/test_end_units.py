"""Units of ends: those of one turn are stored together, and what each is told is its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from served_broker import FakeClient, ServedBroker

from dledger.errors import LogFullError, TooLargeError
from dledger.format import iter_commands
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.table import HALF_COMMANDS, EndHalf, HalfOutcome
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from tests.broker.features.transactions.test_half_requests import (
    ROLLBACK,
    bodies,
    broker,
    client,
    end,
    end_ext,
    end_many,
    send_half,
    table,
)

__all__ = ["broker", "client"]

(END_KIND,) = (kind for kind, command in HALF_COMMANDS.items() if command is EndHalf)


class Stage:
    """What is staged: `units` has (bytes of records, ends) of each unit that ends halves."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[tuple[bool, int]] = []
        self.disk_is_full = False
        self.takes = 1 << 20
        self._stage = broker.memory.node.stage
        monkeypatch.setattr(broker.memory.node, "stage", self.stage)

    def stage(
        self, size: int, *arguments: Any, commands: bytes = b"", privileged: bool = False, **keywords: Any
    ) -> int:
        ends = [kind for kind, _ in iter_commands(commands)].count(END_KIND)
        if self.disk_is_full and not privileged:
            raise LogFullError("the disk is full")
        if size > self.takes:
            raise TooLargeError(f"{size} bytes are more than {self.takes}")
        if ends:
            self.units.append((bool(size), ends))
        return self._stage(size, *arguments, commands=commands, privileged=privileged, **keywords)


@pytest.fixture
def stage(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(broker, monkeypatch)


def halves(client: FakeClient, count: int) -> list[RemotingCommand]:
    return [send_half(client, b"%d" % number) for number in range(count)]


def test_ends_of_one_turn_are_one_unit_with_messages_and_one_without(
    broker: ServedBroker, client: FakeClient, stage: Stage
) -> None:
    sent = halves(client, 6)
    whats = [8, ROLLBACK, 8, 8, ROLLBACK, 8]
    answers = end_many(client, *[end_ext(half, what) for half, what in zip(sent, whats, strict=True)])
    assert [answer.code for answer in answers] == [0] * 6
    assert sorted(stage.units) == [(False, 2), (True, 4)]
    assert sorted(bodies(broker)) == [b"0", b"2", b"3", b"5"]
    assert not table(broker).open
    outcomes = [table(broker).ended[int(end_ext(half)["commitLogOffset"])] for half in sent]
    assert outcomes == [HalfOutcome.COMMITTED if what == 8 else HalfOutcome.ROLLED_BACK for what in whats]


def test_a_full_disk_refuses_the_commits_of_a_turn_and_takes_its_rollbacks(
    broker: ServedBroker, client: FakeClient, stage: Stage
) -> None:
    first, second, third = halves(client, 3)
    stage.disk_is_full = True
    answers = end_many(client, end_ext(first), end_ext(second, ROLLBACK), end_ext(third))
    assert [answer.code for answer in answers] == [
        ResponseCode.SERVICE_NOT_AVAILABLE,
        0,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    ]
    assert len(table(broker).open) == 2
    stage.disk_is_full = False
    assert [end(client, half).code for half in (first, third)] == [0, 0]
    assert bodies(broker) == [b"0", b"2"]


def test_of_ends_that_are_too_large_for_one_unit_each_is_one(
    broker: ServedBroker, client: FakeClient, stage: Stage
) -> None:
    sent = halves(client, 3)
    stage.takes = 400
    assert [answer.code for answer in end_many(client, *map(end_ext, sent))] == [0, 0, 0]
    assert stage.units == [(True, 1)] * 3
    assert sorted(bodies(broker)) == [b"0", b"1", b"2"]


def test_a_commit_whose_topic_is_deleted_before_its_unit_is_staged_stores_nothing(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. A commit is taken in. 2. The deletion of its topic is staged. 3. The unit is: the topic takes nothing more."""
    sent = send_half(client)

    async def scenario() -> int:
        opaque = client.send(RequestCode.END_TRANSACTION, end_ext(sent))
        transactions = broker.service.parts[Transactions]
        gathered: list[Any] = transactions._ends._gathering._items
        while not gathered:
            await asyncio.sleep(0)
            gathered = transactions._ends._gathering._items
        broker.memory.delete_topic("T1")
        broker.settle()
        return opaque

    answer = client.answered(asyncio.run(scenario()))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert list(table(broker).ended.values()) == [HalfOutcome.NO_TOPIC]


def test_what_a_full_disk_drops_is_open_still_and_ends_when_it_is_tried_again(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait for space that is not there; who asked is told that nothing was stored, not that nobody knows."""
    sent = halves(client, 2)
    node = broker.memory.node
    with monkeypatch.context() as patch:
        patch.setattr(node, "commit", node.drop_staged)
        answers = end_many(client, *map(end_ext, sent))
    assert [(answer.code, answer.ext.get("outcome")) for answer in answers] == [
        (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    ] * 2
    assert all((answer.remark or "").startswith("nothing was stored: ") for answer in answers)
    assert len(table(broker).open) == 2
    assert [end(client, half).code for half in sent] == [0, 0]
    assert bodies(broker) == [b"0", b"1"]
