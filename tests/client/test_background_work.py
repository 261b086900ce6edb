"""Background work of clients continues after an unexpected exception."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from client_fakes import fake_cluster, until
from consuming import ack

from dledger_client import PushConsumer
from dledger_client.cluster import core, routes
from dledger_client.cluster.core import ClientCore
from dledger_client.consuming import assignments
from dledger_client.consuming.offers import Offers
from dledger_remoting.codes import RequestCode


def failing_once(monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> Callable[[], bool]:
    """Make the next call of a method raise an unexpected exception. Return a function that says whether it has."""
    method = getattr(target, name)
    failed = []

    def fail(*_: object, **__: object) -> object:
        monkeypatch.setattr(target, name, method)
        failed.append(name)
        raise KeyError("nobody expected that")

    monkeypatch.setattr(target, name, fail)
    return lambda: bool(failed)


async def test_a_queue_is_read_on_and_nothing_is_skipped_or_repeated(cluster, monkeypatch):
    for number in range(3):
        cluster.group.store("T", 0, b"%d" % number)
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        first = await consumer.receive(3, timeout=10)
        (queue,) = (one for one in consumer._running.assignments.fetchers() if one.queue.topic == "T")
        failed = failing_once(monkeypatch, queue, "_pull_once")
        for number in range(3, 5):  # the hanging pull already brings the first of them
            cluster.group.store("T", 0, b"%d" % number)
            first += await consumer.receive(3, timeout=10)
        assert failed()
        assert consumer._running.core.restarts == 1
        assert [message.body for message in first] == [b"%d" % number for number in range(5)]
        ack(first[:3])
        await consumer.commit()
        assert queue.saved_offset == 3


async def test_commit_rebalance_and_stall_tasks_are_restarted_after_errors(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignments, "COMMIT_SECONDS", 0.01)
    monkeypatch.setattr(assignments, "REBALANCE_SECONDS", 0.01)
    async with PushConsumer(cluster.namesrv, "CG", "T", warn_after=0.01) as consumer:
        await until(lambda: consumer.assignment)
        running = consumer._running
        for owner, name in (
            (running.assignments, "commit"),
            (running.assignments, "_try_to_rebalance"),
            (running.stalls, "stalled"),
        ):
            restarts = running.core.restarts
            failed = failing_once(monkeypatch, owner, name)
            await until(failed)
            again = failing_once(monkeypatch, owner, name)
            await until(again)
            await until(lambda restarts=restarts: running.core.restarts == restarts + 2)


async def test_heartbeat_and_route_tasks_are_restarted_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(routes, "WATCH_SECONDS", 0.05)
    async with fake_cluster() as cluster:
        client = ClientCore(cluster.namesrv, heartbeat=lambda: None, poll_seconds=0.01)
        for owner, name in ((client, "beat_now"), (client.routes, "_refresh_all"), (client.routes, "_watch_once")):
            failing_once(monkeypatch, owner, name)
        client.start()
        try:
            await client.routes.get("T", asyncio.get_running_loop().time() + 60)
            await until(lambda: client.restarts == 3)
            for owner, name in ((client, "beat_now"), (client.routes, "_refresh_all"), (client.routes, "_watch_once")):
                cluster.name_server.changed()
                await until(failing_once(monkeypatch, owner, name))
            assert RequestCode.DLEDGER_ROUTE_WATCH in cluster.name_server.codes()
        finally:
            await client.close()


async def test_a_handler_task_goes_on_after_an_error_outside_the_handler(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[bytes] = []

    async def handler(message) -> None:
        handled.append(message.body)

    consumer = PushConsumer(cluster.namesrv, "CG", "T", handler=handler, concurrency=1)
    failed = failing_once(monkeypatch, Offers, "take")
    async with consumer:
        await until(failed)
        cluster.group.store("T", 0, b"m")
        await until(lambda: handled == [b"m"])
