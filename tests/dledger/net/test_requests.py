"""Requests over a data channel arrive in order and are answered once. An unknown outcome is reported as unknown."""

import asyncio
import random
import struct
from collections.abc import Callable
from functools import partial

import pytest

from dledger.environment import AsyncioEnvironment
from dledger.errors import LogError
from dledger.net import requests
from dledger.net.requests import MAX_IN_FLIGHT, SWEEP_INTERVAL_S, RequestChannel
from dledger.net.transport import (
    PeerFailedError,
    PeerGoneError,
    PeerProtocolError,
    PeerTimeoutError,
    PeerUnavailableError,
)  # fmt: skip
from dledger.types import Lane, ReplicaId
from dledger_base.invariants import InvariantError
from dledger_base.telling import INTERVAL_S


class Wire:
    """Wire between channels without a network. A message waits until the test delivers it."""

    def __init__(self) -> None:
        self.ends: dict[str, End] = {}
        self.sent: list[tuple[str, str, bytes]] = []
        self.open = True

    def deliver(self) -> None:
        """Deliver all messages under way, and the messages that this causes."""
        while self.sent:
            sender, to, data = self.sent.pop(0)
            self.ends[to].listener.on_data(ReplicaId(sender, "first"), data)


class End:
    """The transport of one node on a `Wire`."""

    def __init__(self, wire: Wire, node_id: str) -> None:
        self.wire = wire
        self.node_id = node_id
        wire.ends[node_id] = self

    def open_channel(self, number, listener) -> None:
        self.listener = listener

    def can_exchange(self, node_id: str) -> bool:
        return self.wire.open

    def send_data(self, to, channel, data) -> bool:
        if self.wire.open:
            self.wire.sent.append((self.node_id, to, b"".join(data)))
        return self.wire.open


class Clock:
    """Environment whose clock the test moves."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.rng = random.Random(1)

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.time + delay_s, callback))

    def random(self) -> random.Random:
        return self.rng

    def pass_time(self, seconds: float) -> None:
        end = self.time + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.time = max(self.time, timer[0])
            timer[1]()
        self.time = end


def echo(sender, data, reply) -> None:
    reply(b"echo " + data)


def refuse(sender, data, reply) -> None:
    raise AssertionError("nobody asks this side")


class Pair:
    """Two ends of a wire. Side a asks, side b answers, and `answers` are those that a was given."""

    def __init__(self, handler=echo) -> None:
        self.wire, self.clock = Wire(), Clock()
        self.asker = RequestChannel(End(self.wire, "a"), 3, refuse, self.clock)
        RequestChannel(End(self.wire, "b"), 3, handler, self.clock)
        self.answers: list[object] = []

    def ask(self, data: bytes = b"x", to: str = "b", timeout_s: float = 1.0) -> bool:
        return self.asker.submit(to, data, self.answers.append, timeout_s)

    @property
    def kinds(self) -> list[type]:
        return [type(answer) for answer in self.answers]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_request_above_the_frame_limit_is_refused_unsent(pair, monkeypatch):
    monkeypatch.setattr(requests, "MAX_DATA_BYTES", 8)
    assert not pair.ask(b"123456789")
    assert pair.wire.sent == []
    assert pair.ask(b"12345678")
    pair.wire.deliver()
    assert pair.kinds == [PeerFailedError], "the echo is larger than its sound"


def test_requests_that_fail_again_and_again_are_one_line_of_the_log(monkeypatch, caplog):
    monkeypatch.setattr(requests, "MAX_DATA_BYTES", 8)

    def fail(sender, data, reply):
        if data == b"raise":
            raise ValueError("no such thing")
        reply(b"123456789")

    pair = Pair(fail)
    for data in (b"raise", b"long") * 100:
        assert pair.ask(data)
    pair.wire.deliver()
    assert len(pair.answers) == 200
    assert [text.split()[0] for text in caplog.messages] == ["event=request_failed", "event=answer_too_large"]
    pair.clock.pass_time(INTERVAL_S)
    pair.ask(b"raise")
    pair.wire.deliver()
    assert "error='no such thing' untold=198" in caplog.messages[-1]


def test_answers_find_their_requests_in_any_order():
    held = []
    pair = Pair(lambda sender, data, reply: held.append((data, reply)))
    answers = {}
    for number in range(5):
        answer = partial(answers.__setitem__, number)
        assert pair.asker.submit("b", b"%d" % number, answer, 1.0)
    pair.wire.deliver()
    assert [data for data, _ in held] == [b"0", b"1", b"2", b"3", b"4"], "requests arrive in order"
    for data, reply in reversed(held):
        reply(b"answer " + data)
    pair.wire.deliver()
    assert answers == {number: b"answer %d" % number for number in range(5)}
    assert pair.asker.in_flight == 0


def test_a_lost_link_leaves_the_outcome_unknown_and_others_alone(pair):
    End(pair.wire, "c").open_channel(3, pair.asker)
    pair.ask()
    pair.ask(b"y", "c")
    pair.asker.on_lost("b")
    assert pair.kinds == [PeerGoneError]
    assert pair.asker.in_flight == 1
    pair.wire.sent = pair.wire.sent[:1]
    pair.wire.deliver()
    assert len(pair.answers) == 1, "an answer that comes later is not reported again"
    pair.asker.close()
    assert pair.kinds == [PeerGoneError] * 2, "a close ends all requests"


def test_a_timeout_is_reported_once_and_not_before_it_is_due(pair):
    pair.ask()
    pair.ask(b"y", timeout_s=9.0)
    pair.clock.pass_time(0.99)
    assert not pair.answers
    pair.clock.pass_time(0.01 + SWEEP_INTERVAL_S)
    assert pair.kinds == [PeerTimeoutError]
    pair.wire.deliver()
    assert pair.answers[1:] == [b"echo y"]
    pair.clock.pass_time(20)
    assert len(pair.answers) == 2
    assert not pair.clock.timers, "an idle channel has no timer"


def test_a_callback_that_raises_does_not_end_other_timeouts(pair):
    def fail(answer):
        raise KeyError("nobody expected that")

    pair.asker.submit("b", b"x", fail, 1.0)
    pair.ask(b"y", timeout_s=9.0)
    with pytest.raises(KeyError):
        pair.clock.pass_time(1.5)
    pair.clock.pass_time(10)
    assert pair.kinds == [PeerTimeoutError]


def test_requests_in_flight_are_bounded_and_none_is_taken_for_a_lost_link(pair):
    for _ in range(MAX_IN_FLIGHT):
        assert pair.ask(b"")
    assert not pair.asker.submit("b", b"", pytest.fail, 1.0)
    pair.wire.deliver()
    assert len(pair.answers) == MAX_IN_FLIGHT
    assert pair.ask(b"")
    pair.wire.deliver()
    pair.wire.open = False
    assert not pair.asker.submit("b", b"x", pytest.fail, 1.0)
    assert pair.asker.in_flight == 0


def raising(error: Exception):
    def handler(sender, data, reply) -> None:
        raise error

    return handler


def test_a_handler_that_fails_is_logged_and_answered_but_a_broken_invariant_is_no_answer(caplog):
    pair = Pair(raising(ValueError("broken")))
    pair.ask()
    pair.wire.deliver()
    assert pair.kinds == [PeerFailedError]
    assert "broken" in caplog.text
    pair = Pair(raising(InvariantError("never")))
    pair.ask()
    with pytest.raises(InvariantError):
        pair.wire.deliver()
    assert pair.answers == []


def test_only_the_first_answer_of_the_asked_node_counts():
    def twice(sender, data, reply) -> None:
        reply(b"first")
        reply(b"second")

    pair = Pair(twice)
    pair.ask()
    (_, _, request) = pair.wire.sent[0]
    pair.asker.on_data(ReplicaId("c", "first"), b"\x01" + request[1:])
    assert not pair.answers
    pair.wire.deliver()
    assert pair.answers == [b"first"]


def test_short_data_or_an_unknown_kind_is_a_protocol_error_that_harms_no_request(pair):
    pair.ask()
    request_id = struct.unpack_from(">Q", pair.wire.sent[0][2], 1)[0]
    for data, text in ((b"", None), (b"\0" * 8, None), (struct.pack(">BQ", 9, request_id), "kind 9")):
        with pytest.raises(PeerProtocolError, match=text):
            pair.asker.on_data(ReplicaId("b", "first"), data)
    pair.wire.deliver()
    assert pair.answers == [b"echo x"]


async def linked(group, handler) -> tuple:
    """Return a channel on two real nodes that have heard each other in both directions."""
    a, b = await group.pair()
    environment = AsyncioEnvironment(asyncio.get_running_loop())
    asker = RequestChannel(a.links, 5, echo, environment)
    answerer = RequestChannel(b.links, 5, handler, environment)
    # The requests that open the lanes are sent before this data in each direction.
    assert a.links.send_data("b", 1, (b"",))
    assert b.links.send_data("a", 1, (b"",))
    await a.until(lambda: bool(a.data))
    await b.until(lambda: bool(b.data))
    return a, b, asker, answerer


async def test_requests_cross_real_links_in_both_directions(group):
    _, _, asker, answerer = await linked(group, echo)
    assert await asker.request("b", b"hello", 20.0) == b"echo hello"
    assert await answerer.request("a", bytes(100_000), 20.0) == b"echo " + bytes(100_000)
    answers = await asyncio.gather(*(asker.request("b", b"%d" % number, 20.0) for number in range(1000)))
    assert answers == [b"echo %d" % number for number in range(1000)]


@pytest.mark.parametrize("lost", ["asking", "answering"])
async def test_a_link_lost_in_either_direction_ends_the_wait(group, lost):
    held = asyncio.get_running_loop().create_future()
    a, b, asker, _ = await linked(group, lambda sender, data, reply: held.set_result(reply))
    waiting = asyncio.ensure_future(asker.request("b", b"x", 3600.0))
    await held
    if lost == "asking":
        b.links._accepted["a", Lane.BULK].end()
    else:
        a.links._accepted["b", Lane.BULK].end()
    with pytest.raises(PeerGoneError):
        async with asyncio.timeout(20):
            await waiting


async def test_a_node_without_links_is_unavailable(group):
    a = await group.start("a")
    asker = RequestChannel(a.links, 5, echo, AsyncioEnvironment(asyncio.get_running_loop()))
    with pytest.raises(PeerUnavailableError):
        await asker.request("b", b"x", 1.0)


async def test_a_cancelled_request_is_forgotten_quietly(group):
    held = asyncio.get_running_loop().create_future()
    _, _, asker, _ = await linked(group, lambda sender, data, reply: held.set_result(reply) if data else reply(b"done"))
    waiting = asyncio.ensure_future(asker.request("b", b"x", 3600.0))
    reply = await held
    waiting.cancel()
    reply(b"late")
    assert await asker.request("b", b"", 20.0) == b"done"
    assert asker.in_flight == 0
    assert waiting.cancelled() or isinstance(waiting.exception(), LogError)
