"""Turns of a listener: requests that find no time wait in order, and their connection is not read meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from dledger_broker.config import BrokerConfig
from dledger_broker.frontend import connection as connection_module
from dledger_broker.frontend import listener as listener_module
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import STEP_FRAMES, Listener
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import Frame

STEP_S = 0.02
"""Time that each step takes, in seconds. A turn has room for two steps."""


@pytest_asyncio.fixture
async def turns() -> Turns:
    return Turns()


class Turns:
    """Listener on the loop and clock of a test. `seen` holds connections and the numbers of their requests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[Callable[[], None]] = deque()
        self.seen: list[tuple[ClientConnection, int]] = []
        self.steps = 0
        self.lost: list[tuple[ClientConnection, int]] = []
        """Connections that were lost, with the number of requests that had been seen before."""
        self.listener = Listener(
            "n0",
            LiveConfig(BrokerConfig(broker_group="b", node_id="n0", data_dir=Path("unused"))),
            BrokerCounters(),
            set(),
            self.on_reads,
            lambda connection: self.lost.append((connection, len(self.seen))),
        )
        self.listener.loop = cast(
            "Any", SimpleNamespace(time=lambda: self.now, call_soon=self.ready.append, call_later=lambda *_: None)
        )
        self.reading: dict[ClientConnection, bool] = {}

    def on_reads(self, reads: Sequence[Read]) -> bool:
        self.now += STEP_S
        self.steps += 1
        for connection, data, frames in reads:
            for header, body, end, kind in frames:
                command = decode_command(Frame(kind, data[header:body], data[body:end]))
                self.seen.append((cast("ClientConnection", connection), command.opaque))
        return True

    def turn(self) -> int:
        """Run what is ready, and return how many steps it took."""
        before, callbacks = self.steps, list(self.ready)
        self.ready.clear()
        for callback in callbacks:
            callback()
        return self.steps - before

    def rest(self) -> list[int]:
        """Run all turns that are left, and return how many steps each took."""
        taken = []
        while self.ready:
            taken.append(self.turn())
        return taken

    def connect(self) -> ClientConnection:
        connection = ClientConnection(self.listener)
        nothing = {name: lambda *_, **__: None for name in ("set_write_buffer_limits", "get_extra_info", "abort")}
        transport = SimpleNamespace(
            **nothing,
            is_closing=lambda: False,
            pause_reading=lambda: self.reading.update({connection: False}),
            resume_reading=lambda: self.reading.update({connection: True}),
        )
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection


def frames(first: int, count: int) -> bytes:
    return b"".join(encode_command(RemotingCommand(26, number)) for number in range(first, first + count))


async def test_frames_beyond_a_turn_wait_in_order_while_their_connection_is_not_read(turns: Turns) -> None:
    first, second = turns.connect(), turns.connect()
    first.data_received(frames(0, 3 * STEP_FRAMES))
    second.data_received(frames(0, 10))
    taken = turns.steps
    assert turns.reading == {first: False, second: False}
    third = turns.connect()
    third.data_received(frames(0, 1))
    assert max(taken, *turns.rest()) == 2
    assert turns.reading[first]
    assert turns.reading[second]
    for connection, count in ((first, 3 * STEP_FRAMES), (second, 10), (third, 1)):
        assert [number for one, number in turns.seen if one is connection] == list(range(count))


async def test_a_lost_connection_is_reported_after_its_waiting_requests(turns: Turns) -> None:
    connection = turns.connect()
    connection.data_received(frames(0, 8 * STEP_FRAMES))
    turns.turn()
    connection.connection_lost(None)
    assert turns.lost == []
    turns.rest()
    assert turns.lost == [(connection, 8 * STEP_FRAMES)]


async def test_a_stopping_node_handles_all_waiting_frames(turns: Turns) -> None:
    turns.connect().data_received(frames(0, 8 * STEP_FRAMES))
    turns.turn()
    turns.listener.stop_reading()
    assert len(turns.seen) == 8 * STEP_FRAMES


@pytest.mark.parametrize(("limit", "size"), [("MAX_WAITING_BYTES", 1_000), ("MAX_WAITING_FRAMES", 3 * STEP_FRAMES)])
async def test_no_connection_is_read_while_too_much_waits(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, limit: str, size: int
) -> None:
    monkeypatch.setattr(listener_module, limit, size)
    quiet, loud = turns.connect(), turns.connect()
    loud.data_received(frames(0, 8 * STEP_FRAMES))
    turns.turn()
    assert turns.reading == {quiet: False, loud: False}
    turns.rest()
    assert turns.reading == {quiet: True, loud: True}
    assert turns.listener._read_frames == 0


async def test_reads_that_are_dear_to_cut_wait_for_later_turns(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections bring reads full of the smallest frames, or of headers with a million texts, in one turn."""
    cut = connection_module.split_frames

    def slow(*what: Any) -> Any:
        turns.now += listener_module.TURN_S / 3
        return cut(*what)

    monkeypatch.setattr(connection_module, "split_frames", slow)
    connections = [turns.connect() for _ in range(20)]
    unread, longest_s = list(connections), 0.0
    while unread:
        began, turns.now = turns.now, turns.now + 1.0
        turns.turn()
        for connection in list(unread):
            if turns.reading.get(connection, True):
                connection.data_received(frames(0, listener_module.MEASURED_CUTS))
                unread.remove(connection)
        longest_s = max(longest_s, turns.now - began - 1.0)
    assert longest_s < 3 * listener_module.TURN_S
    turns.rest()
    assert len(turns.seen) == len(connections) * listener_module.MEASURED_CUTS
    assert all(turns.reading.get(connection, True) for connection in connections)
