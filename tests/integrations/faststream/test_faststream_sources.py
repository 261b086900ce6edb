"""The sources of messages give the client what a subscriber declares, and ask again after errors."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest.mock import AsyncMock, patch

import pytest

from dledger_client import ClientClosedError, Credentials, DeadlineError, Sql, Tls
from dledger_client.testing import delivered
from dledger_faststream import sources
from dledger_faststream.connections import Connection
from dledger_faststream.subscriptions import Subscription

CONNECTION = Connection(
    name_servers="a:1", namespace="shop", credentials=Credentials("key", "secret"), tls=Tls(), trace=True
)
OF_ALL = {
    "namespace": "shop",
    "credentials": CONNECTION.credentials,
    "tls": CONNECTION.tls,
    "trace": True,
}


async def consumer_of(kind: str, **options: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments with which the source of a subscription makes its consumer."""
    with patch.object(sources, kind) as made:
        made.return_value = AsyncMock()
        source = sources.source_of(CONNECTION, Subscription(topics=("t",), group="g", **options))
        await source.start(None)
        await source.close()
    made.return_value.close.assert_awaited()
    return made.call_args.args, made.call_args.kwargs


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"orderly": False, "queue_locks": False, "broadcast": False, "concurrency": 1, "start_from": "first"}),
        ({"mode": "ordered", "max_workers": 5}, {"orderly": True, "queue_locks": True, "concurrency": 5}),
        ({"mode": "broadcast", "offset_file": Path("f")}, {"broadcast": True, "offset_file": Path("f")}),
        (
            {"start_from": "last", "max_reconsume_times": 3, "close_timeout": 2.5},
            {"start_from": "last", "max_reconsume_times": 3, "close_timeout": 2.5},
        ),
    ],
)
async def test_a_queue_consumer_is_what_the_subscriber_declares(options, expected):
    wanted = Sql("n > 1")
    args, given = await consumer_of("PushConsumer", filter=wanted, **options)
    assert args == ("a:1", "g", {"t": wanted}, None)
    expected = {**OF_ALL, "auto_ack": False, "start_timeout": 10.0, **expected}
    assert {name: given[name] for name in expected} == expected


async def test_a_simple_consumer_is_what_the_subscriber_declares():
    args, given = await consumer_of("SimpleConsumer", mode="simple", filter="a", invisible=7.0, start_from="last")
    assert args == ("a:1", "g", "t")
    assert given == {**OF_ALL, "filter": "a", "invisible": 7.0, "from_beginning": False}


async def test_a_producer_is_what_the_broker_declares():
    with patch("dledger_faststream.connections.Producer") as made:
        Connection(name_servers="a:1", producer_group="p", timeout=3.0, idempotent=True, **OF_ALL).producer()
    made.assert_called_once_with("a:1", group="p", timeout=3.0, idempotent=True, **OF_ALL)


class Flaky(sources.PushSource):
    """A source with errors before its messages."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def receive(self, max_messages, wait):
        if self.errors:
            raise self.errors.pop(0)
        return [delivered("t", b"x")]


async def test_an_error_is_logged_and_the_request_repeated(monkeypatch, caplog):
    monkeypatch.setattr(sources, "_FIRST_PAUSE_SECONDS", 0.001)
    source = Flaky(DeadlineError("no leader"), KeyError("a fault of ours"))
    (message,) = await source.receive_patiently(5)
    assert message.body == b"x"
    assert [(record.levelno, bool(record.exc_info)) for record in caplog.records] == [
        (logging.WARNING, False),
        (logging.ERROR, True),
    ]
    assert "no leader" in caplog.messages[0]


async def test_a_closed_source_is_not_asked_again():
    with pytest.raises(ClientClosedError):
        await Flaky(ClientClosedError("closed")).receive_patiently(5)
