"""The roads of a send, a pull and an offset commit through a lone leader enter no more Python functions than they may.

All of that is paid for every entry, and a reader has to follow all of it. A road that has grown shorter lowers its
budget here, so that it cannot grow back unnoticed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import pytest

from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode
from tests.broker.broker_in_process import node_config
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(f"{ROOT / folder}/" for folder in ("remoting", "dledger/dledger", "base", "broker", "namesrv"))
OWN_WORK = ("AsyncioEnvironment._on_timer", "supervise")
"""Functions with which a node begins work by itself: its clock, its housekeeping, its tasks in the background."""
ROUNDS = 12
"""Number of requests of each kind. The least counts: a node's own work ends between some of them."""
Act = Callable[[], Awaitable[bytes]]


class Road(NamedTuple):
    """Number of Python calls, and of the functions and files that they enter."""

    calls: int
    functions: int
    files: int


BUDGETS = {"send": Road(282, 215, 78), "pull": Road(208, 99, 41), "commit": Road(288, 222, 73)}


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


@pytest.fixture
async def acts(tmp_path: Path):
    """Return the three requests, to a leader that has had each of them before."""
    config = node_config(tmp_path)
    broker = Broker(config, bootstrap=True)
    await broker.start()
    await until(lambda: broker.group.ready)
    reader, writer = await asyncio.open_connection("127.0.0.1", config.port)
    numbers = count(1)

    async def call(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
        writer.write(_frame(code, next(numbers), ext, body))
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        assert b'"code":0,' in answer, answer
        return answer

    found: dict[str, Act] = {
        "send": lambda: call(RequestCode.SEND_MESSAGE_V2, _send_ext(next(numbers)), b"hello"),
        "pull": lambda: call(RequestCode.PULL_MESSAGE, _pull_ext()),
        "commit": lambda: call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(next(numbers))},
        ),
    }
    for _ in range(9):
        await found["send"]()
    for act in found.values():
        await act()
    yield found
    writer.close()
    await broker.stop()


@pytest.mark.parametrize("name", BUDGETS)
async def test_a_request_enters_no_more_functions_than_its_budget(acts: dict[str, Act], name: str) -> None:
    calls = Calls()
    roads = [await calls.road_of(acts[name]) for _ in range(ROUNDS)]
    least = Road(*map(min, zip(*roads, strict=True)))
    assert all(spent <= budget for spent, budget in zip(least, BUDGETS[name], strict=True)), f"{name}: {least}"
