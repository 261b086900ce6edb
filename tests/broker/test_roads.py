"""The roads of a send, a pull and an offset commit through a lone leader enter no more Python functions than they may.

All of that is paid for every entry, and a reader has to follow all of it. A road that has grown shorter lowers its
budget here, so that it cannot grow back unnoticed. The page on the road of a write names functions in the order in
which three nodes enter them.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import pytest

from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode
from tests.broker.broker_group import BrokerGroup
from tests.broker.broker_in_process import node_config
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "road-of-a-write.md"
PRODUCT = tuple(f"{ROOT / folder}/" for folder in ("remoting", "dledger/dledger", "base", "broker", "namesrv"))
OWN_WORK = ("AsyncioEnvironment._on_timer", "supervise")
"""Functions with which a node begins work by itself: its clock, its housekeeping, its tasks in the background."""
ROUNDS = 24
"""Number of requests of each kind. The least counts: a node's own work ends between some of them."""
Act = Callable[[], Awaitable[bytes]]


class Road(NamedTuple):
    """Number of Python calls, and of the functions and files that they enter."""

    calls: int
    functions: int
    files: int


BUDGETS = {"send": Road(255, 193, 74), "pull": Road(110, 94, 41), "commit": Road(273, 211, 74)}


class Calls:
    """Profile function that notes each Python call of the product on the event loop's thread."""

    def __init__(self) -> None:
        self.entered: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT) and not _is_own_work(frame):
            self.entered.append(frame.f_code)

    async def road_of(self, act: Act) -> Road:
        """Return what one request enters until its answer is here."""
        self.entered.clear()
        sys.setprofile(self)
        try:
            await act()
        finally:
            sys.setprofile(None)
        return Road(len(self.entered), len(set(self.entered)), len({code.co_filename for code in self.entered}))


def _is_own_work(frame: FrameType | None) -> bool:
    began = ""
    while frame is not None:
        if frame.f_code.co_filename.startswith(PRODUCT):
            began = frame.f_code.co_qualname
        frame = frame.f_back
    return began in OWN_WORK


def _frame(code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """Return a request as stock clients write it: the code comes first."""
    fields = {"code": code, "flag": 0, "language": "JAVA", "opaque": opaque, "serializeTypeCurrentRPC": "JSON"}
    header = json.dumps(fields | {"version": 479, "extFields": ext}, separators=(",", ":")).encode()
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def _send_ext(number: int) -> dict[str, str]:
    properties = f"KEYS\x01k\x02UNIQ_KEY\x01{number:032X}\x02"
    queue = {"a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return queue | {"i": properties, "j": "0", "k": "false", "m": "false"}


def _pull_ext() -> dict[str, str]:
    numbers = {"queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    numbers |= {"suspendTimeoutMillis": 0, "subVersion": 0}
    texts = {"consumerGroup": "CG", "topic": "T1", "subscription": "*", "expressionType": "TAG"}
    return texts | {name: str(value) for name, value in numbers.items()}


class Caller:
    """Client that writes requests as stock clients do, and awaits the answer to each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._numbers = count(1)

    async def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
        self.writer.write(_frame(code, next(self._numbers), ext, body))
        answer = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        assert b'"code":0,' in answer, answer
        return answer

    def send(self) -> Awaitable[bytes]:
        return self.call(RequestCode.SEND_MESSAGE_V2, _send_ext(next(self._numbers)), b"hello")

    def pull(self) -> Awaitable[bytes]:
        return self.call(RequestCode.PULL_MESSAGE, _pull_ext())

    def commit(self) -> Awaitable[bytes]:
        ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(next(self._numbers))}
        return self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


@pytest.fixture
async def acts(tmp_path: Path):
    """Return the three requests, to a leader that has had each of them before."""
    config = node_config(tmp_path)
    broker = Broker(config, bootstrap=True)
    await broker.start()
    await until(lambda: broker.group.ready)
    caller = Caller(*await asyncio.open_connection("127.0.0.1", config.port))
    for act in (*[caller.send] * 9, caller.pull, caller.commit):
        await act()
    yield {"send": caller.send, "pull": caller.pull, "commit": caller.commit}
    caller.writer.close()
    await broker.stop()


@pytest.mark.parametrize("name", BUDGETS)
async def test_a_request_enters_no_more_functions_than_its_budget(acts: dict[str, Act], name: str) -> None:
    calls = Calls()
    roads = [await calls.road_of(acts[name]) for _ in range(ROUNDS)]
    least = Road(*map(min, zip(*roads, strict=True)))
    assert all(spent <= budget for spent, budget in zip(least, BUDGETS[name], strict=True)), f"{name}: {least}"


async def test_the_page_names_the_functions_of_the_road_in_their_order(tmp_path: Path) -> None:
    group, calls = BrokerGroup(tmp_path), Calls()
    for broker in group.brokers.values():
        await broker.start()
    leader = await group.leader()
    caller = Caller(*await asyncio.open_connection("127.0.0.1", leader.config.port))
    for _ in range(9):
        await caller.send()
    await calls.road_of(caller.send)
    entered = iter([code.co_qualname for code in calls.entered])
    named = re.findall(r"^\| `([A-Z]\w+\.\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(named) > 20
    missing = [name for name in named if name not in entered]
    caller.writer.close()
    for broker in group.brokers.values():
        await broker.stop()
    assert not missing
