"""Confirmations: brokers are told what has reached a push consumer, in few requests, and of nothing else."""

from __future__ import annotations

import asyncio

import pytest
from conftest import consumer_settings, receive_request, telling
from raw_client import RawClient, message_frame

from dledger_client.errors import DeadlineError
from dledger_proxy.grpc import confirmations
from dledger_proxy.grpc.confirmations import Confirmations, Holder
from dledger_proxy.grpc.definition import messaging_pb2 as pb
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.pop import CheckPoint, Retry

ANNA = Holder("anna", "broker-a", "CG", "T1")
BERT = Holder("bert", "broker-a", "CG", "T1")


class Brokers:
    """Brokers that note what they are asked. With `error` they raise it instead."""

    def __init__(self):
        self.asked = []
        self.error = None

    async def ask(self, broker_group, code, ext, *, deadline, accept):
        assert code == RequestCode.CONFIRM_LEASE
        assert accept == {ResponseCode.NO_MESSAGE}
        self.asked.append((broker_group, ext["clientId"], ext["deliveries"], ext.get("signed")))
        if self.error:
            raise self.error
        return RemotingCommand(ResponseCode.SUCCESS)


def point(offset: int, pop_time_ms: int = 7) -> CheckPoint:
    return CheckPoint(0, pop_time_ms, 30_000, False, Retry.NONE, "broker-a", 3, offset)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def collected(brokers):
    made = Confirmations(brokers, 60_000)
    yield made
    await made.close()


async def test_all_deliveries_of_a_client_are_confirmed_in_one_request(brokers, collected):
    collected.arrived(ANNA, [point(0), point(1)], {"signed": "old"})
    collected.arrived(ANNA, [point(2, 8)], {"signed": "new"})
    collected.arrived(BERT, [point(3, 9)], {})
    assert brokers.asked == []
    await collected.close()
    assert sorted(brokers.asked, key=str) == [
        ("broker-a", "anna", "0 3 7;0 3 8", "new"),
        ("broker-a", "bert", "0 3 9", None),
    ]


async def test_deliveries_whose_messages_are_done_with_need_no_confirmation(brokers, collected):
    collected.arrived(ANNA, [point(0), point(1)], {})
    collected.arrived(ANNA, [point(2, 8), point(3, 8)], {})
    for offset in (0, 1):
        collected.done("CG", "T1", point(offset))
    collected.done("CG", "T1", point(2, 8))
    collected.done("CG", "T1", point(9, 9))
    await collected.close()
    assert brokers.asked == [("broker-a", "anna", "0 3 8", None)]


async def test_confirmations_are_sent_by_themselves(brokers, collected, monkeypatch):
    monkeypatch.setattr(confirmations, "PAUSE_SECONDS", 0.01)
    collected.arrived(ANNA, [point(0)], {})
    async with asyncio.timeout(10):
        while not brokers.asked:  # noqa: ASYNC110 - the brokers are a list
            await asyncio.sleep(0.01)


async def test_a_client_that_ends_is_confirmed_first_and_alone(brokers, collected):
    collected.arrived(ANNA, [point(0)], {})
    collected.arrived(BERT, [point(1, 8)], {})
    await collected.settle("bert")
    assert brokers.asked == [("broker-a", "bert", "0 3 8", None)]
    await collected.settle("bert")
    assert len(brokers.asked) == 1


async def test_many_deliveries_are_confirmed_as_brokers_take_them(brokers, collected):
    collected.arrived(ANNA, [point(number, number) for number in range(120)], {})
    await collected.close()
    assert [len(deliveries.split(";")) for _, _, deliveries, _ in brokers.asked] == [50, 50, 20]


async def test_a_confirmation_that_fails_is_told_and_given_up(brokers, collected, caplog):
    brokers.error = DeadlineError("no leader")
    caplog.set_level("INFO")
    collected.arrived(ANNA, [point(0)], {})
    await collected.close()
    assert "event=lease_not_confirmed group=CG topic=T1 client=anna" in caplog.text


async def test_what_a_client_has_not_read_is_not_confirmed(
    start_proxy, connect, cluster, make_topic, group_name, monkeypatch
):
    """The proxy has written the answer, and the client reads nothing more."""
    proxy = await start_proxy(cluster.namesrv)
    noted = []
    monkeypatch.setattr(proxy._pops, "confirm", lambda _query, messages: noted.append(len(messages)))
    topic, client = await make_topic("NORMAL"), connect(proxy)
    await client.receive(topic, group_name, wait_s=0)
    await client.send(topic)
    stuck = await RawClient.to(proxy)
    wanted = receive_request(topic, group_name, wait_s=15, lease=True)
    stream = stuck.request("ReceiveMessage")
    stuck.send(stream, message_frame(wanted.SerializeToString()), end=True)
    async with asyncio.timeout(20):
        while not proxy.counters.messages_out:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0.05)
    await client.receive(topic, group_name, wait_s=0)
    assert noted == []
    assert await stuck.until(lambda event: getattr(event, "stream_ended", None) is not None)
    async with asyncio.timeout(20):
        while not noted:  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.05)
    assert noted == [1]
    stuck.close()


async def test_leases_of_a_client_that_ends_have_begun_before(start_proxy, connect, cluster, make_topic, group_name):
    """Its messages come at once, although nothing was confirmed yet when it ended."""
    proxy = await start_proxy(cluster.namesrv)
    topic, holder, other = await make_topic("NORMAL"), connect(proxy), connect(proxy)
    async with telling(holder, consumer_settings(topic, group_name)) as stream:
        assert stream.settled.status.code == pb.OK
        await holder.receive(topic, group_name, wait_s=0, lease=True)
        await other.send(topic)
        assert len(await holder.receive(topic, group_name, lease=True)) == 1
        await holder.call("NotifyClientTermination")
    [again] = await other.receive(topic, group_name, wait_s=15)
    assert again.system_properties.delivery_attempt == 2
