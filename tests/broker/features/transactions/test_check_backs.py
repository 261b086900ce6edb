"""Check-backs: producers that do not end their transactions are asked, and what nobody ends is given up once."""

from __future__ import annotations

import asyncio

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.errors import BusyError, CorruptionError
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.transactions.requests import Transactions
from dledger_broker.features.transactions.table import HALVES, HalfOutcome, HalfTable
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import find_property
from dledger_remoting.record import RECORD_HEAD_BYTES, decode_record
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1\x02"
CHECK = RequestCode.CHECK_TRANSACTION_STATE
COMMIT = 8
TIMEOUT_S, INTERVAL_S, CHECKS = 6, 30, 3


class Checked:
    """A broker that checks halves, and a producer of theirs."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        machine = broker.memory.machine
        GroupSettings(machine, broker.memory.env, broker.config)
        broker.settle()
        machine.learn_kinds(broker.config.node_id, machine.commands.kinds)
        broker.settle()
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


@pytest.fixture
def checked(make_broker: MakeBroker) -> Checked:
    return Checked(make_broker(transaction_check_max=CHECKS))


def send_half(client: FakeClient, more: str = "") -> RemotingCommand:
    return client.send_message("T1", b"half", 2, HALF + more, f="4")


def end_ext(sent: RemotingCommand, what: int = COMMIT) -> dict[str, str]:
    position = parse_offset_message_id(sent.ext["msgId"])[1]
    offsets = {"tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": str(position)}
    return {"producerGroup": "PG", **offsets, "commitOrRollback": str(what)}


def checks(client: FakeClient) -> list[dict[str, str]]:
    return [ext for code, ext in client.pushed if code == CHECK]


async def test_a_producer_is_asked_after_the_timeout_and_ends_its_half(checked: Checked) -> None:
    client = checked.producer()
    sent = send_half(client)
    await checked.run(TIMEOUT_S - 1)
    assert checks(client) == []
    await checked.run(3)
    (ext,) = checks(client)
    expected = end_ext(sent)
    assert {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset")} == {
        name: expected[name] for name in ("tranStateTableOffset", "commitLogOffset")
    }
    assert (ext["topic"], ext["msgId"], ext["transactionId"], ext["bname"]) == ("T1", "K1", "K1", "broker-a")
    assert ext["offsetMsgId"] == sent.ext["msgId"]
    record = decode_record(client.pushed_bodies[-1], verify_crc=True)
    assert (record.topic, record.queue_id, record.body) == ("T1", 2, b"half")
    assert find_property(record.properties, b"PGROUP") == b"PG"
    assert (await checked.ask(client, RequestCode.END_TRANSACTION, expected)).code == 0
    await checked.run(2 * INTERVAL_S)
    assert len(checks(client)) == 1
    assert checked.broker.memory.bodies("T1", 2) == [b"half"]


async def test_nobody_is_asked_within_the_immunity(checked: Checked) -> None:
    client = checked.producer()
    send_half(client, "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    await checked.run(59)
    assert checks(client) == []
    await checked.run(3)
    assert len(checks(client)) == 1


async def test_a_check_that_the_busy_log_did_not_take_is_made_later(checked: Checked) -> None:
    client = checked.producer()
    send_half(client)
    checked.broker.memory.node.stage_error = BusyError("too much is in flight")
    await checked.run(TIMEOUT_S + 2)
    assert checks(client) == []
    checked.broker.memory.node.stage_error = None
    await checked.run(2)
    assert len(checks(client)) == 1


async def test_only_producers_of_the_group_are_asked(checked: Checked) -> None:
    client, stranger = checked.producer(), checked.producer("others")
    send_half(client)
    await checked.run(TIMEOUT_S + 2)
    assert (len(checks(client)), len(checks(stranger))) == (1, 0)


async def test_checks_count_whether_a_producer_lives_or_not_and_then_a_half_is_given_up(checked: Checked) -> None:
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


async def test_what_is_given_up_is_kept_and_ended_in_one_unit(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_half(checked.broker.client())
    await checked.run(TIMEOUT_S + (CHECKS - 1) * (INTERVAL_S + 1) + 2)
    stage = checked.broker.memory.node.stage
    staged: list[tuple[int, int]] = []

    def noted(size: int, *arguments: object, commands: bytes = b"", **keywords: object) -> int:
        staged.append((size, len(commands)))
        return stage(size, *arguments, commands=commands, **keywords)  # type: ignore[arg-type]

    checked.broker.memory.create_topic(CHECK_MAX_TIME_TOPIC, 1)
    monkeypatch.setattr(checked.broker.memory.node, "stage", noted)
    await checked.run(INTERVAL_S + 3)
    assert not checked.table.open
    [(size, command_bytes)] = [unit for unit in staged if unit[0]]
    assert size > RECORD_HEAD_BYTES
    assert command_bytes > 0
    assert checked.broker.memory.bodies(CHECK_MAX_TIME_TOPIC) == [b"half"]


async def given_up(checked: Checked, client: FakeClient, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Have a half given up; returns the fields that open it again, as the leader's log tells them."""
    send_half(client)
    await checked.run(TIMEOUT_S + (CHECKS + 1) * (INTERVAL_S + 2))
    (line,) = (text for text in caplog.messages if "event=transaction_undecided" in text)
    return {"msgId": line.rpartition("kept_as=")[2]}


async def test_what_was_given_up_is_opened_again_once(checked: Checked, caplog: pytest.LogCaptureFixture) -> None:
    client = checked.producer()
    resume = await given_up(checked, client, caplog)
    asked = len(checks(client))
    assert (await checked.ask(client, RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)).code == 0
    (half,) = checked.table.open.values()
    assert (half.checks, half.group) == (0, "PG")
    again = await checked.ask(client, RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
    assert again.code == ResponseCode.SYSTEM_ERROR
    assert "open again" in (again.remark or "")
    await checked.run(TIMEOUT_S + 2)
    ext = checks(client)[asked]
    end = {"producerGroup": "PG", "commitOrRollback": "8", **ext}
    assert (await checked.ask(client, RequestCode.END_TRANSACTION, end)).code == 0
    assert checked.broker.memory.bodies("T1", 2) == [b"half"]


async def test_of_two_that_open_a_half_again_at_once_one_does(
    checked: Checked, caplog: pytest.LogCaptureFixture
) -> None:
    client = checked.producer()
    resume = await given_up(checked, client, caplog)
    opaques = [client.send(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume) for _ in range(2)]
    await checked.run(1)
    assert sorted(client.answered(opaque).code for opaque in opaques) == [0, 1]
    assert len(checked.table.open) == 1


async def test_at_max_open_halves_none_is_opened_again_before_another_one_ends(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    checked = Checked(make_broker(transaction_check_max=CHECKS, max_open_halves=1))
    client = checked.producer()
    resume = await given_up(checked, client, caplog)
    send_half(client)
    refused = await checked.ask(client, RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "1 transactions are open, which is the limit max_open_halves" in (refused.remark or "")
    assert "end some" in (refused.remark or "")
    assert checked.broker.counters.max_open_halves == 1
    ((position, half),) = checked.table.open.items()
    assert list(checked.table.ended.values()) == [HalfOutcome.UNDECIDED]
    end = {"tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(position), "commitOrRollback": "12"}
    assert (await checked.ask(client, RequestCode.END_TRANSACTION, {"producerGroup": "PG", **end})).code == 0
    assert (await checked.ask(client, RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)).code == 0
    assert len(checked.table.open) == 1
    assert checked.broker.counters.max_open_halves == 1


async def test_a_half_that_is_being_opened_again_counts_for_the_limit(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is on its way: neither the state nor a send has it yet."""
    checked = Checked(make_broker(transaction_check_max=CHECKS, max_open_halves=1))
    client = checked.producer()
    resume = await given_up(checked, client, caplog)
    commit = checked.broker.memory.node.commit
    checked.broker.memory.node.commit = lambda: None  # type: ignore[method-assign]
    opened = client.send(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
    await checked.run(0.5)
    sent = client.send(310, send_ext("T1", 2, HALF, f="4"), b"half")
    await checked.run(0.5)
    assert client.answered(sent).code == ResponseCode.SYSTEM_BUSY
    assert not client.has_answer(opened)
    checked.broker.memory.node.commit = commit  # type: ignore[method-assign]
    commit()
    await checked.run(0.5)
    assert client.answered(opened).code == 0
    assert len(checked.table.open) == 1


@pytest.mark.parametrize("message_id", ["", "nothing", "0A00000100002A9F0000000000000005"])
async def test_only_what_was_given_up_is_opened_again(checked: Checked, message_id: str) -> None:
    client = checked.producer()
    sent = send_half(client)
    for wrong in (message_id, sent.ext["msgId"]):
        refused = await checked.ask(client, RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": wrong})
        assert refused.code != 0
        assert refused.remark
    assert len(checked.table.open) == 1


async def test_a_half_whose_end_is_on_its_way_is_not_checked(checked: Checked) -> None:
    client = checked.producer()
    sent = send_half(client)
    await checked.run(TIMEOUT_S - 1)
    commit = checked.broker.memory.node.commit
    checked.broker.memory.node.commit = lambda: None  # type: ignore[method-assign]
    opaque = client.send(RequestCode.END_TRANSACTION, end_ext(sent, 12))
    await checked.run(4)
    checked.broker.memory.node.commit = commit  # type: ignore[method-assign]
    commit()
    await checked.run(1)
    assert client.answered(opaque).code == 0
    assert checks(client) == []


async def test_a_look_asks_about_so_many_and_the_next_one_goes_on(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger_broker.features.transactions.checks.MOST_AT_ONCE", 2)
    client = checked.producer()
    sent = [send_half(client) for _ in range(5)]
    await checked.run(TIMEOUT_S + 0.5)
    counts = [len(checks(client))]
    for _ in range(2):
        await checked.run(1)
        counts.append(len(checks(client)))
    assert counts == [2, 4, 5]
    assert [ext["commitLogOffset"] for ext in checks(client)] == [end_ext(half)["commitLogOffset"] for half in sent]


async def test_what_cannot_be_read_holds_up_no_other_and_is_given_up_once_it_can_be(
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


async def test_an_ordinary_message_is_never_checked(checked: Checked) -> None:
    client = checked.producer()
    assert client.call(310, send_ext("T1"), b"plain").code == 0
    await checked.run(2 * INTERVAL_S)
    assert checks(client) == []
