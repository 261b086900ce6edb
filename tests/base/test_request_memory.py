"""Memory for partly arrived requests is bounded, goes to active clients, and is never withheld for good."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_base.invariants import InvariantError
from dledger_base.request_memory import SMALL_BYTES, RequestMemory, RequestMemoryLimits

MIB = 1 << 20
LIMITS = RequestMemoryLimits(max_bytes=64 * MIB, largest_bytes=16 * MIB, timeout_s=5.0)


class Clock:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None], SimpleNamespace]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> SimpleNamespace:
        handle = SimpleNamespace(cancel=self._due.clear)
        self._due.append((self.now + delay, callback, handle))
        return handle

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and min(at for at, _, _ in self._due) <= until:
            first = min(self._due, key=lambda timer: timer[0])
            self._due.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = until


class Port:
    """Connections with one `RequestMemory`, and its actions on them."""

    def __init__(self, limits: RequestMemoryLimits = LIMITS) -> None:
        self.clock = Clock()
        self.senders: set[Sender] = set()
        self.counted: Counter[str] = Counter()
        self.request_memory = RequestMemory(
            self.senders,
            self.clock,
            limits,
            on_shortage=lambda: self.counted.update(["shortage"]),
            on_timeout=lambda: self.counted.update(["timeout"]),
        )

    def connect(self, request_bytes: int, sent: int = 0) -> Sender:
        """Connect a client that will send a request of this size, and has sent a part of it."""
        sender = Sender(self, request_bytes)
        self.senders.add(sender)
        if sent:
            sender.send(sent)
        return sender


class Sender:
    def __init__(self, port: Port, request_bytes: int) -> None:
        self.port = port
        self.unsent = request_bytes
        self.arrived = self.missing = 0
        self.is_read = True
        self.cut_off_because = ""

    def send(self, size: int) -> int:
        """Let up to `size` bytes of the request arrive, unless nobody reads them. Return their number."""
        if not self.is_read or self.cut_off_because:
            return 0
        size = min(size, self.unsent)
        self.unsent -= size
        if not self.unsent:
            self.forget()
        else:
            self.arrived += size
            self.missing = self.unsent
            self.port.request_memory.grew(self, size)
        return size

    def forget(self) -> None:
        if self.arrived:
            self.port.request_memory.ended(self)
            self.arrived = self.missing = 0

    def leave(self) -> None:
        self.forget()
        self.port.senders.discard(self)

    def hold(self) -> None:
        self.is_read = False

    def let_go(self) -> None:
        self.is_read = True

    def cut_off(self, why: str) -> None:
        self.cut_off_because = why
        self.leave()


@pytest.fixture
def port() -> Port:
    return Port()


def filled(port: Port) -> list[Sender]:
    """Connect clients that have sent 15 of 16 MiB each, so that others have to wait."""
    return [port.connect(16 * MIB, 15 * MIB) for _ in range(4)]


def test_requests_are_read_without_delay_while_there_is_room(port):
    senders = [port.connect(16 * MIB, 15 * MIB) for _ in range(3)]
    assert all(sender.is_read for sender in senders)
    assert (port.request_memory.held_bytes, port.counted["shortage"]) == (45 * MIB, 0)
    for sender in senders:
        sender.send(MIB)
    assert port.request_memory.held_bytes == 0


def test_requests_that_lack_least_go_first_and_the_others_wait(port):
    near, far = port.connect(16 * MIB, 14 * MIB), port.connect(16 * MIB, 2 * MIB)
    others = [port.connect(16 * MIB, 12 * MIB) for _ in range(3)]
    assert port.request_memory.is_tight
    assert (near.is_read, far.is_read) == (True, False)
    near.send(2 * MIB)
    assert [other.is_read for other in others] == [True] * 3
    for other in others:
        other.send(4 * MIB)
    assert far.is_read
    assert not port.request_memory.is_tight


def test_requests_that_lack_little_pass_waiting_ones(port):
    filled(port)
    small, medium, large = port.connect(1000, 500), port.connect(SMALL_BYTES + 10, 10), port.connect(16 * MIB, 10)
    assert (small.is_read, medium.is_read, large.is_read) == (True, True, False)
    assert small.send(500) == 500


def test_an_idle_sender_is_cut_off_and_a_waiting_request_gets_its_memory(port):
    idle = filled(port)
    large = port.connect(16 * MIB, MIB)
    assert not large.is_read
    port.clock.advance(LIMITS.timeout_s)
    (cut_off,) = (sender for sender in idle if sender.cut_off_because)
    assert port.counted["timeout"] == 1
    assert "15728640 bytes of a request, and the 1048576 that it lacks did not" in cut_off.cut_off_because
    assert large.is_read, "and the other three, who keep nobody waiting now, have another turn"


def test_the_turn_of_a_trickling_sender_also_ends(port):
    filled(port)
    late = port.connect(16 * MIB, MIB)
    for _ in range(10):
        for sender in list(port.senders):
            sender.send(1)
        port.clock.advance(LIMITS.timeout_s / 10)
    assert port.counted["timeout"] == 1
    assert late.is_read


def test_a_slow_sender_is_cut_off_only_while_another_request_waits(port):
    slow = [port.connect(size * MIB, size * MIB - SMALL_BYTES) for size in (2, 16, 16, 16)]
    assert port.request_memory.is_tight
    port.clock.advance(100 * LIMITS.timeout_s)
    assert not any(sender.cut_off_because for sender in slow)
    late = port.connect(16 * MIB, MIB)
    assert not late.is_read
    port.clock.advance(LIMITS.timeout_s)
    assert late.is_read


def test_memory_above_the_limit_is_taken_from_the_largest_holders(port):
    hogs = filled(port)
    crowd = [port.connect(MIB, MIB // 4) for _ in range(40)]
    assert sum(bool(hog.cut_off_because) for hog in hogs) == 2
    assert "more than others" in next(hog.cut_off_because for hog in hogs if hog.cut_off_because)
    assert not any(sender.cut_off_because for sender in crowd)
    assert port.request_memory.held_bytes <= LIMITS.max_bytes


def test_a_sender_that_uses_its_turn_keeps_its_memory(port):
    busy, *idle = (port.connect(16 * MIB, size * MIB) for size in (15, 12, 12, 12))
    assert busy.send(1000) == 1000
    for _ in range(60):
        port.connect(MIB, MIB // 4)
    assert any(sender.cut_off_because for sender in idle)
    assert not busy.cut_off_because
    assert busy.send(MIB) == MIB - 1000


def test_a_sender_that_leaves_makes_room_for_a_waiting_request(port):
    idle = filled(port)
    late = port.connect(16 * MIB, MIB)
    for sender in idle[:2]:
        sender.leave()
    assert late.is_read


def test_a_shortage_is_logged_once_in_a_while(port, caplog):
    for _ in range(3):
        for sender in filled(port):
            sender.leave()
    assert port.counted["shortage"] == 3
    assert caplog.text.count("max_partial_bytes=67108864") == 1
    port.clock.advance(10)
    filled(port)
    assert caplog.text.count("max_partial_bytes=67108864") == 2


def test_no_timer_is_left_behind(port):
    filled(port)
    port.request_memory.close()
    port.clock.advance(100)
    assert port.counted["timeout"] == 0


def test_a_bound_below_two_requests_is_refused():
    with pytest.raises(InvariantError, match="two of the largest requests fit"):
        RequestMemoryLimits(max_bytes=31 * MIB, largest_bytes=16 * MIB, timeout_s=5.0)


@settings(max_examples=150)
@given(st.integers(0, 1 << 32), st.integers(2, 60), st.sampled_from([0.0, 0.3, 0.9]))
def test_memory_stays_limited_and_all_active_senders_are_served(seed, count, idle_ratio):
    rng = random.Random(seed)
    unit = SMALL_BYTES
    limits = RequestMemoryLimits(max_bytes=64 * unit, largest_bytes=16 * unit, timeout_s=5.0)
    read_bytes = unit // 2
    port = Port(limits)
    senders = [port.connect(rng.randint(1, 16 * unit)) for _ in range(count)]
    stop_at = {sender: rng.randint(0, sender.unsent) for sender in senders if rng.random() < idle_ratio}
    for _ in range(10_000):
        live = [sender for sender in senders if sender.unsent and not sender.cut_off_because]
        if all(sender in stop_at for sender in live):
            break
        if (
            sum(sender.send(rng.randint(1, read_bytes)) for sender in live if sender.unsent > stop_at.get(sender, 0))
            == 0
        ):
            port.clock.advance(1.0)
        held = sum(sender.arrived for sender in port.senders)
        assert held == port.request_memory.held_bytes <= limits.max_bytes + read_bytes
        assert port.request_memory._promised_bytes == sum(sender.missing for sender in port.request_memory._turns)
    shed = [sender for sender in senders if "more than others" in sender.cut_off_because]
    honest = [sender for sender in senders if sender not in stop_at and sender not in shed]
    assert not any(sender.cut_off_because or sender.unsent for sender in honest)
    assert not shed or count * read_bytes > limits.max_bytes // 4
    for sender in senders:
        sender.leave()
    assert not port.request_memory.is_tight
    assert port.request_memory.held_bytes == 0
