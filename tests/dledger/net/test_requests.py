"""Requests over a data channel: in order, answered once, and honest about what is not known."""

import asyncio
import random
import struct
from collections.abc import Callable

import pytest

from dledger.environment import AsyncioEnvironment
from dledger.errors import LogError
from dledger.invariants import InvariantError
from dledger.net import requests
from dledger.net.errors import (
    PeerFailedError,
    PeerGoneError,
    PeerProtocolError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from dledger.net.requests import MAX_IN_FLIGHT, SWEEP_INTERVAL_S, RequestChannel
from dledger.types import Lane, ReplicaId


class Wire:
    """Joins channels without a network: what one sends waits until the test delivers it."""

    def __init__(self) -> None:
        self.ends: dict[str, End] = {}
        self.sent: list[tuple[str, str, bytes]] = []
        self.open = True

    def deliver(self) -> None:
        """Carry everything that is under way, and what that causes to be sent."""
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
    """An environment whose time passes when the test says so."""

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


def pair(handler) -> tuple[RequestChannel, RequestChannel, Wire, Clock]:
    wire, clock = Wire(), Clock()
    asker = RequestChannel(End(wire, "a"), 3, refuse, clock)
    answerer = RequestChannel(End(wire, "b"), 3, handler, clock)
    return asker, answerer, wire, clock


def test_what_no_frame_can_carry_is_neither_sent_nor_waited_for(monkeypatch):
    monkeypatch.setattr(requests, "MAX_DATA_BYTES", 8)
    answers = []
    asker, _, wire, _ = pair(echo)
    assert not asker.submit("b", b"123456789", answers.append, 1.0)
    assert wire.sent == []
    assert asker.submit("b", b"12345678", answers.append, 1.0)
    wire.deliver()
    (answer,) = answers
    assert isinstance(answer, PeerFailedError), "the echo is larger than its sound"


def test_answers_find_their_requests_in_any_order():
    held = []
    asker, _, wire, _ = pair(lambda sender, data, reply: held.append((data, reply)))
    answers = {}
    for number in range(5):
        assert asker.submit("b", b"%d" % number, lambda answer, number=number: answers.update({number: answer}), 1.0)
    wire.deliver()
    assert [data for data, _ in held] == [b"0", b"1", b"2", b"3", b"4"], "requests arrive in order"
    for data, reply in reversed(held):
        reply(b"answer " + data)
    wire.deliver()
    assert answers == {number: b"answer %d" % number for number in range(5)}
    assert asker.in_flight == 0


def test_a_lost_link_leaves_the_outcome_unknown_and_others_alone():
    asker, _, wire, _ = pair(echo)
    End(wire, "c").open_channel(3, asker)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    asker.submit("c", b"y", answers.append, 1.0)
    asker.on_lost("b")
    assert len(answers) == 1
    assert isinstance(answers[0], PeerGoneError)
    assert asker.in_flight == 1
    wire.sent = wire.sent[:1]
    wire.deliver()
    assert len(answers) == 1, "an answer that comes later is not reported again"


def test_a_timeout_is_reported_once_and_not_before_it_is_due():
    asker, _, wire, clock = pair(echo)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    asker.submit("b", b"y", answers.append, 9.0)
    clock.pass_time(0.99)
    assert not answers
    clock.pass_time(0.01 + SWEEP_INTERVAL_S)
    assert [type(answer) for answer in answers] == [PeerTimeoutError]
    wire.deliver()
    assert answers[1:] == [b"echo y"]
    clock.pass_time(20)
    assert len(answers) == 2
    assert not clock.timers, "an idle channel has no timer"


def test_an_asker_that_raises_does_not_end_the_timeouts_of_others():
    asker, _, _, clock = pair(echo)
    answers = []

    def fail(answer):
        raise KeyError("nobody expected that")

    asker.submit("b", b"x", fail, 1.0)
    asker.submit("b", b"y", answers.append, 9.0)
    with pytest.raises(KeyError):
        clock.pass_time(1.5)
    clock.pass_time(10)
    assert [type(answer) for answer in answers] == [PeerTimeoutError]


def test_what_cannot_be_sent_is_refused_and_never_answered():
    asker, _, wire, _ = pair(echo)
    wire.open = False
    assert not asker.submit("b", b"x", pytest.fail, 1.0)
    assert asker.in_flight == 0


def test_requests_in_flight_are_bounded():
    asker, _, wire, _ = pair(echo)
    answers = []
    for _ in range(MAX_IN_FLIGHT):
        assert asker.submit("b", b"", answers.append, 1.0)
    assert not asker.submit("b", b"", pytest.fail, 1.0)
    wire.deliver()
    assert len(answers) == MAX_IN_FLIGHT
    assert asker.submit("b", b"", answers.append, 1.0)


def test_a_handler_that_fails_is_logged_and_answered(caplog):
    def fail(sender, data, reply) -> None:
        raise ValueError("broken")

    asker, _, wire, _ = pair(fail)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    wire.deliver()
    assert isinstance(answers[0], PeerFailedError)
    assert "broken" in caplog.text


def test_a_broken_invariant_is_not_an_answer():
    def fail(sender, data, reply) -> None:
        raise InvariantError("never")

    asker, _, wire, _ = pair(fail)
    asker.submit("b", b"x", pytest.fail, 1.0)
    with pytest.raises(InvariantError):
        wire.deliver()


def test_closing_fails_what_is_in_flight():
    asker, _, _, _ = pair(echo)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    asker.close()
    assert isinstance(answers[0], PeerGoneError)


def test_a_second_answer_does_not_count():
    def twice(sender, data, reply) -> None:
        reply(b"first")
        reply(b"second")

    asker, _, wire, _ = pair(twice)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    wire.deliver()
    assert answers == [b"first"]


def test_only_the_asked_node_can_answer():
    asker, _, wire, _ = pair(echo)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    (_, _, request) = wire.sent[0]
    asker.on_data(ReplicaId("c", "first"), b"\x01" + request[1:])
    assert not answers


@pytest.mark.parametrize("data", [b"", b"\0" * 8])
def test_short_data_is_a_protocol_error(data):
    asker, _, _, _ = pair(echo)
    with pytest.raises(PeerProtocolError):
        asker.on_data(ReplicaId("b", "first"), data)


def test_an_unknown_kind_is_a_protocol_error_that_harms_no_request():
    asker, _, wire, _ = pair(echo)
    answers = []
    asker.submit("b", b"x", answers.append, 1.0)
    request_id = struct.unpack_from(">Q", wire.sent[0][2], 1)[0]
    with pytest.raises(PeerProtocolError, match="kind 9"):
        asker.on_data(ReplicaId("b", "first"), struct.pack(">BQ", 9, request_id))
    wire.deliver()
    assert answers == [b"echo x"]


async def linked(group, handler) -> tuple:
    """A channel on two real nodes; they have heard each other in both directions."""
    a, b = await group.pair()
    environment = AsyncioEnvironment(asyncio.get_running_loop())
    asker = RequestChannel(a.links, 5, echo, environment)
    answerer = RequestChannel(b.links, 5, handler, environment)
    # What opens the lanes travels ahead of this in each direction.
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
