"""Messages that a group consumer could not handle are redelivered once for each failure, or become dead letters."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock, refusing, until
from consuming import Failing, committed, fetcher_of, fill, take

import dledger_client.consuming.settlements
from dledger_client import PullConsumer, PushConsumer
from dledger_client.consuming import retries
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.properties import parse_properties

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
NOT_NOW = ValueError("not this time")


@pytest.fixture
def no_pauses(monkeypatch):
    """Let orderly consumers try a failed message again at once."""
    monkeypatch.setattr(dledger_client.consuming.settlements, "pause_seconds", lambda _failures: 0.0)


async def test_a_failed_message_goes_to_the_retry_topic_and_comes_back(cluster):
    fill(cluster, 3, KEYS="k")
    topics, handler = set(), Failing(lambda message: message.body == b"0001" and message.reconsume_times < 2)

    async def handle(message):
        topics.add(message.topic)
        await handler(message)

    async with PushConsumer(cluster.namesrv, "CG", "T", handle):
        await until(lambda: (b"0001", 2) in handler.seen)
    assert [entry for entry in handler.seen if entry[0] == b"0001"] == [(b"0001", number) for number in range(3)]
    assert topics == {"T"}
    assert cluster.group.offsets["CG", "T", 0] == 3
    assert cluster.group.offsets["CG", "%RETRY%CG", 0] == 2
    properties = parse_properties(cluster.group.queues["%RETRY%CG", 0][1].properties)
    assert (properties["RETRY_TOPIC"], properties["RECONSUME_TIME"], properties["KEYS"]) == ("T", "2", "k")


async def test_a_redelivered_message_keeps_its_flag(cluster):
    cluster.group.store("T", 0, b"x", flag=7)
    flags = []

    async def handler(message):
        flags.append(message.flag)
        if len(flags) == 1:
            raise ValueError("not yet")

    async with PushConsumer(cluster.namesrv, "CG", "T", handler):
        await until(lambda: len(flags) == 2)
    assert flags == [7, 7]


async def test_a_failed_message_is_sent_back_to_a_broker_that_supports_retries(cluster):
    fill(cluster, 1)
    cluster.answer(SEND_BACK, refusing(0, ""))
    async with PushConsumer(cluster.namesrv, "CG", "T", Failing(error=NOT_NOW), max_reconsume_times=5) as consumer:
        await until(lambda: cluster.requests(SEND_BACK))
        await committed(consumer, cluster, 1)
    [command] = cluster.requests(SEND_BACK)
    assert command.ext["failureReason"] == "ValueError: not this time"
    assert (command.ext["group"], command.ext["originTopic"], command.ext["maxReconsumeTimes"]) == ("CG", "T", "5")
    assert not cluster.requests(RequestCode.SEND_MESSAGE_V2)


@pytest.mark.parametrize(("of_the_group", "options"), [(16, {"max_reconsume_times": 1}), (1, {})])
async def test_a_message_that_failed_too_often_ends_in_the_dead_letter_topic(cluster, of_the_group, options):
    fill(cluster, 1)
    cluster.group.retry_max_times = of_the_group
    handler = Failing()
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, **options):
        await until(lambda: cluster.group.bodies("%DLQ%CG"))
    assert cluster.group.bodies("%DLQ%CG") == [b"0000"]
    assert handler.seen == [(b"0000", 0), (b"0000", 1)]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_rejected_message_is_a_dead_letter_after_one_delivery(cluster, orderly):
    fill(cluster, 2)
    seen = []

    async def handler(message):
        seen.append((message.body, message.reconsume_times))
        if message.body == b"0000":
            message.reject(reason="no such customer")

    async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=orderly) as consumer:
        await until(lambda: cluster.group.bodies("%DLQ%CG"))
        [letter] = cluster.group.queues["%DLQ%CG", 0]
        assert parse_properties(letter.properties)["__FAILURE_REASON"] == "no such customer"
        await committed(consumer, cluster, 2)
    assert cluster.group.bodies("%DLQ%CG") == [b"0000"]
    assert seen == [(b"0000", 0), (b"0001", 0)]


async def test_a_handler_that_returns_after_retry_does_not_acknowledge_the_redelivery(cluster, no_pauses):
    fill(cluster, 3)
    ended, again = [], asyncio.Event()

    async def handler(message):
        if message.queue_offset == 0 and message.reconsume_times == 0:
            message.retry()
            await again.wait()
        elif message.queue_offset == 0:
            again.set()
            await asyncio.sleep(0.05)
        ended.append((message.queue_offset, message.reconsume_times))

    async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True, concurrency=4):
        await until(lambda: len(ended) == 4)
    assert ended == [(0, 0), (0, 1), (1, 0), (2, 0)]


async def test_a_message_given_back_is_not_acknowledged_by_the_next_iteration(cluster, no_pauses):
    fill(cluster, 3)

    async def give_one_back_and_fail_at_the_next():
        async with PushConsumer(cluster.namesrv, "CG", "T", orderly=True) as consumer:
            async for message in consumer:
                if message.reconsume_times == 1:
                    raise ZeroDivisionError
                assert message.queue_offset == 0
                message.retry()
                await until(lambda: consumer._running.offers)

    with pytest.raises(ZeroDivisionError):
        await give_one_back_and_fail_at_the_next()
    assert cluster.group.offsets.get(("CG", "T", 0), 0) == 0


class Panic(BaseException):
    """Exception like `pyo3_runtime.PanicException`, which a panic in Rust becomes."""


@pytest.mark.parametrize("error", [Panic, asyncio.CancelledError])
async def test_a_panic_in_a_handler_counts_as_a_failure(cluster, error):
    """A cancellation of something for which the handler has waited is a failure too."""
    fill(cluster, 5)
    handler = Failing(lambda message: message.body == b"0001" and message.reconsume_times == 0, error)
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, concurrency=1, close_timeout=0.1):
        await until(lambda: (b"0001", 1) in handler.seen)
    assert [body for body, _ in handler.seen] == [b"0000", b"0001", b"0002", b"0003", b"0004", b"0001"]
    assert cluster.group.offsets["CG", "T", 0] == 5


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("properties", [b"a\x01b\x01c", b"a\x01" + bytes([65]) * 32_700])
async def test_a_failed_message_that_cannot_be_copied_is_delivered_again(
    cluster, properties, orderly, no_pauses, monkeypatch
):
    monkeypatch.setattr(dledger_client.consuming.settlements, "_ORDERLY_RECONSUME_TIMES", 1)
    leader = cluster.group.nodes[0]

    async def send(command):
        if len(command.ext["i"]) > 32_767:
            return make_response(command, ResponseCode.MESSAGE_ILLEGAL, "the properties are too long")
        return await leader.handle(command, None)

    leader.on[RequestCode.SEND_MESSAGE_V2] = send
    cluster.group.store("T", 0, b"x", properties)
    handler = Failing(lambda _: len(handler.seen) < 4)
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=orderly) as consumer:
        await until(lambda: len(handler.seen) == 4)
        await committed(consumer, cluster, 1)
    assert handler.seen == [(b"x", number) for number in range(4)]


async def test_a_message_given_back_after_the_close_starts_nothing(cluster):
    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        [message] = await take(consumer, 1)
    before = asyncio.all_tasks()
    message.retry()
    assert asyncio.all_tasks() <= before


async def test_a_failed_message_whose_queue_has_moved_is_left_to_the_next_owner(cluster, monkeypatch):
    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        [message] = await take(consumer, 1)
        fetcher = fetcher_of(consumer)

        def moves_meanwhile(_failures):
            fetcher.revoke()
            consumer._running.assignments._fetchers.pop(message.queue, None)
            return 0.0

        monkeypatch.setattr(retries, "pause_seconds", moves_meanwhile)
        message.retry()
        await until(lambda: not fetcher.retrying)
    assert cluster.group.bodies("%RETRY%CG") == []


async def test_a_message_that_the_broker_cannot_take_back_is_retried_as_a_copy(cluster):
    """The record of a message may be trimmed while its handler works."""
    fill(cluster, 1)
    cluster.answer(SEND_BACK, refusing(1, "look message by offset failed"))
    async with PushConsumer(cluster.namesrv, "CG", "T", Failing()) as consumer:
        await until(lambda: cluster.group.queues["%RETRY%CG", 0])
        await committed(consumer, cluster, 1)
    (copy, *_) = cluster.group.queues["%RETRY%CG", 0]
    assert (copy.body, copy.reconsume_times) == (b"0000", 1)


async def test_a_message_that_no_broker_takes_back_is_reported_as_a_stall(cluster, caplog):
    fill(cluster, 2)
    for code in (SEND_BACK, RequestCode.SEND_MESSAGE_V2):
        cluster.answer(code, refusing(16, "the group may not"))
    handler, options = Failing(lambda message: message.queue_offset == 0), {"warn_after": 0.05, "close_timeout": 0.0}
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, **options) as consumer:
        await until(lambda: consumer.stalls)
        assert [(stall.offset, stall.reason) for stall in consumer.stalled] == [(0, "not given back")]
    assert "its copy is not stored yet" in caplog.text


async def test_a_dead_letter_that_its_broker_does_not_take_goes_there_as_a_copy(cluster, no_pauses):
    fill(cluster, 1)
    cluster.answer(SEND_BACK, refusing(1, "it is gone"))
    handler = Failing(error=NOT_NOW)
    async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True, max_reconsume_times=1):
        await until(lambda: cluster.group.bodies("%DLQ%CG"))
    assert cluster.group.bodies("%RETRY%CG") == []
    [letter] = cluster.group.queues["%DLQ%CG", 0]
    assert parse_properties(letter.properties)["__FAILURE_REASON"] == "ValueError: not this time"


async def test_an_unreadable_queue_is_reported_as_a_stall(cluster, caplog):
    cluster.answer(RequestCode.PULL_MESSAGE, refusing(16, "no right to read it"))
    async with PushConsumer(cluster.namesrv, "CG", "T", warn_after=10.0) as consumer:
        await until(lambda: len(cluster.requests(RequestCode.PULL_MESSAGE)) >= 2)
        with HandClock() as clock:
            await clock.run_for(41)
        assert {stall.reason for stall in consumer.stalled} == {"not read"}
    assert "refuses pulls: code 16, no right to read it" in caplog.text


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
async def test_a_broker_that_holds_no_more_pulls_is_not_asked_all_the_time(cluster, kind):
    offsets = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
    cluster.answer(RequestCode.PULL_MESSAGE, refusing(ResponseCode.PULL_NOT_FOUND, "", **offsets))
    if kind is PushConsumer:
        async with PushConsumer(cluster.namesrv, "CG", "T"):
            await asyncio.sleep(0.5)
    else:
        async with PullConsumer(cluster.namesrv, "CG") as consumer:
            await consumer.assign(await consumer.queues("T"))
            assert await consumer.poll(timeout=0.5) == []
    assert len([one for one in cluster.requests(RequestCode.PULL_MESSAGE) if one.ext["topic"] == "T"]) < 10
