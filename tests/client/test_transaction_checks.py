"""A transaction producer runs a limited number of checks at a time, and no check ends another."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dledger_client import Decision, OpenTransaction, TransactionProducer
from dledger_client.cluster.connection import Connection
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import CheckTransactionHeader, encode_ext
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

HOST = HostAddress("10.0.0.1", 10911)


class Asked:
    """Check function of an application whose calls continue when they are told to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.go_on = asyncio.Event()

    async def __call__(self, transaction: OpenTransaction) -> Decision:
        self.bodies.append(transaction.body)
        await self.go_on.wait()
        if transaction.body == b"raises":
            raise LookupError("the application's fault")
        return "unknown"


def question(body: bytes) -> RemotingCommand:
    place = {"queue_id": 0, "queue_offset": 0, "physical_offset": 7, "born_timestamp": 1, "store_timestamp": 1}
    record = MessageRecord(topic="t", body=body, born_host=HOST, store_host=HOST, **place)
    header = CheckTransactionHeader(tran_state_table_offset=0, commit_log_offset=7, topic="t", bname="broker-a")
    return RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext=encode_ext(header), body=encode_record(record))


async def ask(producer: TransactionProducer, *bodies: bytes) -> None:
    for body in bodies:
        producer._on_request(cast(Connection, None), question(body))
    for _ in range(3):
        await asyncio.sleep(0)


async def test_check_backs_above_the_limit_wait_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_client.transactions.MAX_CHECKS", 2)
    asked = Asked()
    producer = TransactionProducer("127.0.0.1:1", group="g", check=asked)
    await ask(producer, b"a", b"b", b"c")
    assert asked.bodies == [b"a", b"b"]
    asked.go_on.set()
    await ask(producer)
    await ask(producer, b"c")
    assert asked.bodies == [b"a", b"b", b"c"]


async def test_a_check_that_raises_is_logged_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    asked.go_on.set()
    producer = TransactionProducer("127.0.0.1:1", group="g", check=asked)
    await ask(producer, b"raises", b"raises")
    assert asked.bodies == [b"raises", b"raises"]
    assert "the check of a transaction raised" in caplog.text


async def test_an_unreadable_check_back_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    producer = TransactionProducer("127.0.0.1:1", group="g", check=asked)
    producer._on_request(cast(Connection, None), RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE))
    await ask(producer)
    assert asked.bodies == []
    assert "a check of a transaction failed" in caplog.text
