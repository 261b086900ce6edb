"""Clients of the cluster are shared by the requests of an account, and closed when nobody needs them."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until

from dledger_client import InvalidArgumentError
from dledger_client.errors import refusal
from dledger_proxy.http.backend import BusyError
from dledger_proxy.http.pool import Pool
from dledger_remoting.errors import NoPermission, SystemBusy


class FakeClient:
    def __init__(self) -> None:
        self.started = self.closed = 0
        self.gate: asyncio.Event | None = None

    async def start(self) -> None:
        self.started += 1
        if self.gate is not None:
            await self.gate.wait()

    async def close(self) -> None:
        self.closed += 1


class Making:
    """A pool, and the clients that were made for it."""

    def __init__(self, **options: float) -> None:
        self.pool: Pool[FakeClient] = Pool(**options)
        self.made: list[FakeClient] = []

    def make(self) -> FakeClient:
        self.made.append(FakeClient())
        return self.made[-1]

    async def use(self, key: object, error: Exception | None = None) -> FakeClient:
        async with self.pool.lend(key, self.make) as client:
            if error is not None:
                raise error
            return client


async def test_requests_with_one_key_share_a_client_and_others_do_not():
    making = Making()
    assert await making.use("a") is await making.use("a")
    assert await making.use("b") is not await making.use("a")
    assert [client.started for client in making.made] == [1, 1]
    await making.pool.close()
    assert [client.closed for client in making.made] == [1, 1]


async def test_a_client_is_started_once_by_all_that_want_it():
    making = Making()
    client = FakeClient()
    client.gate = asyncio.Event()

    async def use() -> FakeClient:
        async with making.pool.lend("a", lambda: client) as lent:
            return lent

    tasks = [asyncio.create_task(use()) for _ in range(3)]
    await until(lambda: client.started)
    tasks[0].cancel()
    await asyncio.sleep(0)
    client.gate.set()
    assert await asyncio.gather(*tasks[1:]) == [client, client]
    assert client.started == 1
    await making.pool.close()


async def test_an_unused_client_is_closed_after_a_while_and_a_used_one_is_not():
    making = Making(idle_s=0.01)
    async with making.pool.lend("used", making.make) as used:
        unused = await making.use("unused")
        await until(lambda: unused.closed)
        assert ("unused" in making.pool, used.closed) == (False, 0)
    await until(lambda: used.closed)
    assert len(making.pool) == 0


async def test_a_further_client_displaces_the_one_that_is_unused_for_the_longest_time():
    making = Making(max_clients=2)
    a, b = await making.use("a"), await making.use("b")
    await making.use("a")
    await making.use("c")
    assert ("a" in making.pool, "b" in making.pool) == (True, False)
    await until(lambda: b.closed)
    assert a.closed == 0
    await making.pool.close()


async def test_too_many_clients_in_use_are_busy():
    making = Making(max_clients=1)
    async with making.pool.lend("a", making.make):
        with pytest.raises(BusyError, match="1 clients of the cluster are in use"):
            await making.use("b")
        assert await making.use("a") is making.made[0]
    assert await making.use("b") is making.made[1]
    await making.pool.close()
    with pytest.raises(BusyError, match="the proxy is stopping"):
        await making.use("c")


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (refusal(NoPermission("check signature failed")), False),
        (refusal(SystemBusy("quota")), True),
        (InvalidArgumentError("no"), True),
    ],
)
async def test_a_client_whose_account_is_refused_is_closed_at_once(error, is_kept):
    making = Making()
    with pytest.raises(type(error)):
        await making.use("a", error)
    assert ("a" in making.pool) is is_kept
    await until(lambda: making.made[0].closed == (not is_kept))
    await making.pool.close()


async def test_a_retired_client_is_closed_once_nobody_uses_it():
    making = Making()
    async with making.pool.lend("a", making.make) as client:
        making.pool.retire("a")
        assert await making.use("a") is client, "as long as it is used"
        assert client.closed == 0
    await until(lambda: client.closed)
    await making.use("b")
    making.pool.retire("b")
    making.pool.retire("nothing")
    await until(lambda: making.made[1].closed)
    assert len(making.pool) == 0


async def test_a_client_that_cannot_be_made_leaves_nothing_behind():
    making = Making()

    def fail() -> FakeClient:
        raise InvalidArgumentError("bad filter")

    with pytest.raises(InvalidArgumentError):
        async with making.pool.lend("a", fail):
            pass
    assert len(making.pool) == 0
