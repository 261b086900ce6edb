"""Check-backs: producers that do not end their transactions are asked, and a half that nobody ends is given up once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused, send_ext

from dledger.errors import BusyError, CorruptionError
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.table import HALVES, HalfOutcome, HalfTable
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.properties import find_property
from dledger_remoting.record import RECORD_HEAD_BYTES, decode_record
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC
from tests.broker.features.sending.majority import Majority
from tests.broker.features.transactions.test_half_requests import HALF, end_ext, founded

CHECK, RESUME = RequestCode.CHECK_TRANSACTION_STATE, RequestCode.RESUME_CHECK_HALF_MESSAGE
TIMEOUT_S, INTERVAL_S, CHECKS = 6, 30, 3


class Checked:
    """Broker that checks halves, and a producer of these halves."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = founded(broker)
        machine = broker.memory.machine
        part = broker.service.parts[Transactions]
        machine.jobs.open(part.jobs, broker.memory.node, broker.memory.writer)
        broker.settle()

    @property
    def table(self) -> HalfTable:
        return self.broker.memory.machine.state.table(HALVES)

    def producer(self, group: str = "PG") -> FakeClient:
        client = self.broker.client(f"producer of {group}")
        heartbeat = encode_heartbeat(HeartbeatData(f"{group}@1", [ProducerData(group)], []))
        assert client.call(RequestCode.HEART_BEAT, {}, heartbeat).code == 0
        return client

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.broker.memory.env.advance(0.5)
            for _ in range(5):
                await asyncio.sleep(0)
                self.broker.settle()

    async def ask(self, client: FakeClient, code: int, ext: dict[str, str]) -> RemotingCommand:
        opaque = client.send(code, ext)
        await self.run(0.5)
        return client.answered(opaque)


MakeChecked = Callable[..., Checked]


@pytest.fixture
def make_checked(make_broker: MakeBroker) -> MakeChecked:
    return lambda **keys: Checked(make_broker(transaction_check_max=CHECKS, **keys))


@pytest.fixture
def checked(make_checked: MakeChecked) -> Checked:
    return make_checked()


def send_half(client: FakeClient) -> RemotingCommand:
    return client.send_message("T1", b"half", 2, HALF, f="4")


def checks(client: FakeClient) -> list[dict[str, str]]:
    return [ext for code, ext in client.pushed if code == CHECK]


async def test_halves_are_checked_at_intervals_below_a_second(make_checked: MakeChecked) -> None:
    checked = make_checked(transaction_check_interval_ms=500)
    client = checked.producer()
    send_half(client)
    await checked.run(TIMEOUT_S + 2)
    assert len(checks(client)) == CHECKS


async def test_a_producer_is_asked_after_the_timeout_and_ends_its_half(checked: Checked) -> None:
    client, stranger = checked.producer(), checked.producer("others")
    assert client.call(310, send_ext("T1"), b"plain").code == 0, "an ordinary message is never checked"
    sent = send_half(client)
    await checked.run(TIMEOUT_S - 1)
    assert checks(client) == []
    await checked.run(3)
    (ext,) = checks(client)
    expected = end_ext(sent)
    for name in ("tranStateTableOffset", "commitLogOffset"):
        assert ext[name] == expected[name]
    assert (ext["topic"], ext["msgId"], ext["transactionId"], ext["bname"]) == ("T1", "K1", "K1", "broker-a")
    assert ext["offsetMsgId"] == sent.ext["msgId"]
    record = decode_record(client.pushed_bodies[-1], verify_crc=True)
    assert (record.topic, record.queue_id, record.body) == ("T1", 2, b"half")
    assert find_property(record.properties, b"PGROUP") == b"PG"
    assert (await checked.ask(client, RequestCode.END_TRANSACTION, expected)).code == 0
    await checked.run(2 * INTERVAL_S)
    assert (len(checks(client)), len(checks(stranger))) == (1, 0)
    assert checked.broker.memory.bodies("T1", 2) == [b"half"]


async def test_a_check_that_the_busy_log_did_not_take_is_made_later(checked: Checked) -> None:
    client, node = checked.producer(), checked.broker.memory.node
    send_half(client)
    for error, seconds, count in ((BusyError("too much is in flight"), TIMEOUT_S + 2, 0), (None, 2, 1)):
        node.stage_error = error
        await checked.run(seconds)
        assert len(checks(client)) == count


async def test_a_half_is_given_up_after_its_last_check_with_or_without_a_producer(checked: Checked) -> None:
    client = checked.broker.client()
    sent = send_half(client)
    await checked.run(TIMEOUT_S + 2)
    (half,) = checked.table.open.values()
    assert half.checks == 1
    client = checked.producer()
    await checked.run((CHECKS - 1) * (INTERVAL_S + 1))
    (half,) = checked.table.open.values()
    assert half.checks == CHECKS
    assert len(checks(client)) == CHECKS - 1
    await checked.run(INTERVAL_S + 3)
    assert not checked.table.open
    assert checked.table.ended == {half.position: HalfOutcome.UNDECIDED}
    assert checked.broker.memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"half"]
    refused = await checked.ask(client, RequestCode.END_TRANSACTION, end_ext(sent))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    await checked.run(2 * INTERVAL_S)
    assert checked.broker.memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"half"]
    assert len(checks(client)) == CHECKS - 1


async def test_a_given_up_half_is_kept_and_ended_in_one_unit(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    send_half(checked.broker.client())
    await checked.run(TIMEOUT_S + (CHECKS - 1) * (INTERVAL_S + 1) + 2)
    checked.broker.memory.create_topic(CHECK_MAX_TIME_TOPIC, 1)
    node = checked.broker.memory.node
    stage, staged = node.stage, list[tuple[int, int]]()

    def noted(size: int, *arguments: object, commands: bytes = b"", **keywords: object) -> int:
        staged.append((size, len(commands)))
        return stage(size, *arguments, commands=commands, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(node, "stage", noted)
    await checked.run(INTERVAL_S + 3)
    assert not checked.table.open
    [(size, command_bytes)] = [unit for unit in staged if unit[0]]
    assert (size > RECORD_HEAD_BYTES, command_bytes > 0) == (True, True)
    assert checked.broker.memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"half"]


async def given_up(checked: Checked, caplog: pytest.LogCaptureFixture) -> tuple[FakeClient, dict[str, str]]:
    """Have a half given up. Return its producer, and the fields that open it again, as the leader's log tells them."""
    client = checked.producer()
    send_half(client)
    await checked.run(TIMEOUT_S + (CHECKS + 1) * (INTERVAL_S + 2))
    (line,) = (text for text in caplog.messages if "event=transaction_undecided" in text)
    return client, {"msgId": line.rpartition("kept_as=")[2]}


async def test_a_given_up_half_can_be_reopened_once(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    client, resume = await given_up(checked, caplog)
    asked = len(checks(client))
    assert (await checked.ask(client, RESUME, resume)).code == 0
    (half,) = checked.table.open.values()
    assert (half.checks, half.group) == (0, "PG")
    assert_refused(await checked.ask(client, RESUME, resume), ResponseCode.SYSTEM_ERROR, "open again")
    await checked.run(TIMEOUT_S + 2)
    ext = checks(client)[asked]
    end = {"producerGroup": "PG", "commitOrRollback": "8", **ext}
    assert (await checked.ask(client, RequestCode.END_TRANSACTION, end)).code == 0
    assert checked.broker.memory.bodies("T1", 2) == [b"half"]


async def test_only_one_of_two_requests_reopens_a_half(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    client, resume = await given_up(checked, caplog)
    opaques = [client.send(RESUME, resume) for _ in range(2)]
    await checked.run(1)
    assert sorted(client.answered(opaque).code for opaque in opaques) == [0, 1]
    assert len(checked.table.open) == 1


async def test_at_max_open_halves_no_half_is_reopened_before_another_half_ends(
    make_checked: MakeChecked, caplog: pytest.LogCaptureFixture
) -> None:
    checked = make_checked(max_open_halves=1)
    client, resume = await given_up(checked, caplog)
    send_half(client)
    texts = ("1 transactions are open, which is the limit max_open_halves", "end some")
    assert_refused(await checked.ask(client, RESUME, resume), ResponseCode.SYSTEM_BUSY, *texts)
    assert checked.broker.counters.max_open_halves == 1
    ((position, half),) = checked.table.open.items()
    assert list(checked.table.ended.values()) == [HalfOutcome.UNDECIDED]
    end = {"tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(position), "commitOrRollback": "12"}
    assert (await checked.ask(client, RequestCode.END_TRANSACTION, {"producerGroup": "PG", **end})).code == 0
    assert (await checked.ask(client, RESUME, resume)).code == 0
    assert len(checked.table.open) == 1
    assert checked.broker.counters.max_open_halves == 1


async def test_a_half_that_is_being_opened_again_counts_for_the_limit(
    make_checked: MakeChecked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the state nor a send has it yet."""
    checked = make_checked(max_open_halves=1)
    client, resume = await given_up(checked, caplog)
    with monkeypatch.context() as patch:
        majority = Majority(checked.broker, patch)
        opened = client.send(RESUME, resume)
        await checked.run(0.5)
        sent = client.send(310, send_ext("T1", 2, HALF, f="4"), b"half")
        await checked.run(0.5)
        assert client.answered(sent).code == ResponseCode.SYSTEM_BUSY
        assert not client.has_answer(opened)
    majority.has_it()
    await checked.run(0.5)
    assert client.answered(opened).code == 0
    assert len(checked.table.open) == 1


async def test_a_half_with_an_end_in_flight_is_not_checked(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    client = checked.producer()
    sent = send_half(client)
    await checked.run(TIMEOUT_S - 1)
    with monkeypatch.context() as patch:
        majority = Majority(checked.broker, patch)
        opaque = client.send(RequestCode.END_TRANSACTION, end_ext(sent, 12))
        await checked.run(4)
    majority.has_it()
    await checked.run(1)
    assert client.answered(opaque).code == 0
    assert checks(client) == []


async def test_the_number_of_checks_at_once_is_limited_and_the_next_round_continues(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger_broker.features.transactions.checks.MOST_AT_ONCE", 2)
    client = checked.producer()
    sent = [send_half(client) for _ in range(5)]
    await checked.run(TIMEOUT_S + 0.5)
    for count in (2, 4, 5):
        assert len(checks(client)) == count
        await checked.run(1)
    assert [ext["commitLogOffset"] for ext in checks(client)] == [end_ext(half)["commitLogOffset"] for half in sent]


async def test_an_unreadable_half_delays_no_other_half_and_is_given_up_once_readable(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger_broker.features.transactions.checks.MOST_AT_ONCE", 1)
    client = checked.producer()
    unreadable, _other = send_half(client), send_half(client)
    position = int(end_ext(unreadable)["commitLogOffset"])
    lookup = checked.broker.memory.machine.lookup
    record_at = lookup.record_at

    async def broken(wanted: int) -> object:
        if wanted == position:
            raise CorruptionError(f"the record at {wanted} is rotten")
        return await record_at(wanted)

    with monkeypatch.context() as patch:
        patch.setattr(lookup, "record_at", broken)
        await checked.run(TIMEOUT_S + (CHECKS + 2) * (INTERVAL_S + 2))
        assert list(checked.table.open) == [position]
        assert checked.broker.memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"half"]
        assert checked.table.open[position].checks == CHECKS
    await checked.run(INTERVAL_S + 2)
    assert not checked.table.open
    assert checked.broker.memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"half", b"half"]
