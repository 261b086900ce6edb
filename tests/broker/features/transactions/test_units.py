"""Units of halves and of ends: those of one turn are stored together, and each is answered with its own outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.errors import BusyError, LogFullError, TooLargeError
from dledger.format import iter_commands
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, MAX_UNIT_BYTES
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.table import HALF_COMMANDS, EndHalf, HalfOutcome, OpenHalf
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.topics import HALF_TOPIC
from tests.broker.features.sending.majority import Majority
from tests.broker.features.transactions.test_half_requests import (
    IMMUNITY,
    ROLLBACK,
    bodies,
    end,
    end_ext,
    end_many,
    founded,
    send_half,
    table,
)

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
(OPEN_KIND,) = (kind for kind, command in HALF_COMMANDS.items() if command is OpenHalf)


def halves_of(commands: bytes, _context: object) -> int:
    """Return the number of halves that a staged unit opens."""
    payloads = (payload for kind, payload in iter_commands(commands) if kind == OPEN_KIND)
    return sum(len(OpenHalf.from_payload(payload).halves) for payload in payloads)


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return founded(make_broker(max_open_halves=20))


@pytest.fixture
def majority(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Majority:
    return Majority(broker, monkeypatch, halves_of)


def send(client: FakeClient, count: int, body: bytes = b"half") -> list[int]:
    """Send halves in one turn, and return their opaques."""
    opaques = [client.send(310, send_ext("T1", number % 4, HALF, f="4"), body) for number in range(count)]
    client.broker.settle()
    return opaques


def test_halves_of_one_turn_share_a_unit_and_get_their_own_positions(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    other = broker.client("client/2")
    first = client.send(310, send_ext("T1", 1, HALF, f="4"), b"1")
    second = other.send(310, send_ext("T1", 2, f"{HALF}{IMMUNITY}\x0160\x02", f="4"), b"2" * 50)
    third = client.send(310, send_ext("T1", 3, HALF.replace("PG\x02", "PH\x02"), f="4"), b"3")
    broker.settle()
    assert (majority.units, client.answers) == ([3], [])
    majority.has_it()
    answers = [client.answered(first), other.answered(second), client.answered(third)]
    places = [(answer.ext["queueId"], answer.ext["queueOffset"]) for answer in answers]
    assert places == [("1", "0"), ("2", "1"), ("3", "2")]
    positions = [parse_offset_message_id(answer.ext["msgId"])[1] for answer in answers]
    halves = table(broker).open
    assert [(half.queue_offset, half.group) for half in halves.values()] == [(0, "PG"), (1, "PG"), (2, "PH")]
    assert list(halves) == positions
    assert len({half.next_check_ms for half in halves.values()}) == 2
    for position, body in zip(positions, (b"1", b"2" * 50, b"3"), strict=True):
        found = broker.memory.run(broker.memory.machine.lookup.record_at(position))
        assert found is not None
        assert found[1].body == body


def test_halves_gather_behind_halves_in_flight_up_to_the_time_limit(client: FakeClient, majority: Majority) -> None:
    send(client, 8)
    for _ in range(3):
        send(client, 1)
    assert majority.units == [8]
    send(client, 1)
    assert majority.units == [8, 4]
    send(client, 1)
    client.broker.advance(MAX_GATHER_S)
    assert majority.units == [8, 4, 1]
    send(client, 1)
    majority.has_it()
    assert majority.units == [8, 4, 1, 1], "what was on its way is stored"


def test_large_halves_are_units_of_their_own(client: FakeClient, majority: Majority) -> None:
    opaques = send(client, 3, bytes(MAX_UNIT_BYTES // 2))
    assert majority.units == [1, 1, 1]
    majority.has_it()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 0]


def test_a_half_without_a_majority_is_answered_and_counts_until_its_outcome_is_known(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    opaques = send(client, 20)
    broker.advance(broker.config.quorum_timeout_ms / 1000 + 1)
    for opaque in opaques:
        assert client.answered(opaque).ext["outcome"] == "unknown"
        assert "no majority stored the message" in (client.answered(opaque).remark or "")
    assert client.answered(send(client, 1)[0]).code == ResponseCode.SYSTEM_BUSY
    majority.has_it()
    assert len(client.answers) == 21, "each is answered once"
    assert len(table(broker).open) == 20


def test_gathered_halves_count_toward_max_open_halves(client: FakeClient, majority: Majority) -> None:
    send(client, 16)
    send(client, 4)
    assert majority.units == [16]
    assert client.answered(send(client, 1)[0]).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize(
    ("error", "code"),
    [(BusyError("full"), ResponseCode.SYSTEM_BUSY), (TooLargeError("x"), ResponseCode.MESSAGE_ILLEGAL)],
)
def test_refused_halves_are_answered_and_stop_counting(client: FakeClient, error: Exception, code: int) -> None:
    for refusal, expected in ((error, code), (None, 0)):
        client.broker.memory.node.stage_error = refusal
        assert {client.answered(opaque).code for opaque in send(client, 20)} == {expected}


def test_messages_gathered_at_a_loss_of_leadership_wait_for_the_next_leader(
    broker: ServedBroker, client: FakeClient, majority: Majority
) -> None:
    sent = send(client, 8)
    (waiting,) = send(client, 1)
    broker.memory.node.step_down()
    broker.settle()
    assert {client.answered(opaque).ext["outcome"] for opaque in sent} == {"unknown"}
    broker.memory.node.lead()
    broker.advance(MAX_GATHER_S)
    majority.has_it()
    assert client.answered(waiting).ext["queueOffset"] == "0"


def test_halves_in_flight_or_gathered_are_answered_when_the_node_stops(client: FakeClient, majority: Majority) -> None:
    opaques = [*send(client, 8), *send(client, 1)]
    client.broker.service.parts[Transactions].close()
    client.broker.advance(1)
    assert {client.answered(opaque).ext["outcome"] for opaque in opaques} == {"unknown"}


def test_a_gathered_half_is_refused_when_the_half_topic_is_deleted(client: FakeClient, majority: Majority) -> None:
    send(client, 8)
    (waiting,) = send(client, 1)
    client.broker.memory.machine.proposals.delete_topic(HALF_TOPIC, lambda _: None)
    client.broker.advance(MAX_GATHER_S)
    assert client.answered(waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE


# ---- ends


(END_KIND,) = (kind for kind, command in HALF_COMMANDS.items() if command is EndHalf)


class Stage:
    """Record of what is staged: `units` has (has records, number of ends) of each unit that ends halves."""

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


def test_ends_of_one_turn_are_one_unit_with_messages_and_one_without(client: FakeClient, stage: Stage) -> None:
    sent = halves(client, 6)
    whats = [8, ROLLBACK, 8, 8, ROLLBACK, 8]
    answers = end_many(client, *[end_ext(half, what) for half, what in zip(sent, whats, strict=True)])
    assert [answer.code for answer in answers] == [0] * 6
    assert sorted(stage.units) == [(False, 2), (True, 4)]
    assert sorted(bodies(client.broker)) == [b"0", b"2", b"3", b"5"]
    assert not table(client.broker).open
    outcomes = [table(client.broker).ended[int(end_ext(half)["commitLogOffset"])] for half in sent]
    assert outcomes == [HalfOutcome.COMMITTED if what == 8 else HalfOutcome.ROLLED_BACK for what in whats]


def test_a_full_disk_refuses_the_commits_of_a_turn_and_takes_its_rollbacks(client: FakeClient, stage: Stage) -> None:
    first, second, third = halves(client, 3)
    stage.disk_is_full = True
    answers = end_many(client, end_ext(first), end_ext(second, ROLLBACK), end_ext(third))
    full = ResponseCode.SERVICE_NOT_AVAILABLE
    assert [answer.code for answer in answers] == [full, 0, full]
    assert len(table(client.broker).open) == 2
    stage.disk_is_full = False
    assert [end(client, half).code for half in (first, third)] == [0, 0]
    assert bodies(client.broker) == [b"0", b"2"]


def test_ends_too_large_for_one_unit_get_a_unit_each(broker: ServedBroker, client: FakeClient, stage: Stage) -> None:
    sent = halves(client, 3)
    stage.takes = 400
    assert [answer.code for answer in end_many(client, *map(end_ext, sent))] == [0, 0, 0]
    assert stage.units == [(True, 1)] * 3
    assert sorted(bodies(broker)) == [b"0", b"1", b"2"]


def test_a_commit_whose_topic_is_deleted_before_its_unit_is_staged_stores_nothing(client: FakeClient) -> None:
    """A commit is taken in, then the deletion of its topic is staged, and then the commit's unit."""
    sent = send_half(client)

    async def scenario() -> int:
        opaque = client.send(RequestCode.END_TRANSACTION, end_ext(sent))
        transactions = client.broker.service.parts[Transactions]
        gathered: list[Any] = transactions._ends._gathering._items
        while not gathered:
            await asyncio.sleep(0)
            gathered = transactions._ends._gathering._items
        client.broker.memory.delete_topic("T1")
        client.broker.settle()
        return opaque

    answer = client.answered(asyncio.run(scenario()))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert list(table(client.broker).ended.values()) == [HalfOutcome.NO_TOPIC]


def test_an_end_dropped_by_a_full_disk_leaves_its_half_open_and_can_be_repeated(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait for space that is not there. The producer is told that nothing was stored, not that nobody knows."""
    sent, node = halves(client, 2), broker.memory.node
    with monkeypatch.context() as patch:
        patch.setattr(node, "commit", node.drop_staged)
        answers = end_many(client, *map(end_ext, sent))
    for answer in answers:
        assert (answer.code, answer.ext.get("outcome")) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
        assert (answer.remark or "").startswith("nothing was stored: ")
    assert len(table(broker).open) == 2
    assert [end(client, half).code for half in sent] == [0, 0]
    assert bodies(broker) == [b"0", b"1"]
