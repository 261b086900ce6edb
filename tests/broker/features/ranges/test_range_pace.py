"""Reading ranges gives way to what comes in, on a node that is short of cores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger_broker.features.ranges.pace import (
    MAX_HOLD_S,
    MIN_READ_BYTES,
    MIN_TAKEN_BYTES_PER_S,
    MIN_WAITED_SHARE,
    READS_PER_S,
    WINDOW_S,
    RangePace,
)
from dledger_broker.testing.environment import FakeEnvironment

LEAST = 8 << 20
WANTED = 4 << 20


class Node:
    """A node that takes in so much a second, and waits for a core for such a part of the time."""

    def __init__(self, taken_per_s: float, waited_share: float, least: int = LEAST) -> None:
        self.env = FakeEnvironment()
        self.taken_per_s = taken_per_s
        self.waited_share = waited_share
        self.taken = 0.0
        self.pace = RangePace(self.env, lambda: int(self.taken), least)

    def pass_time(self, seconds: float) -> None:
        self.env.advance(seconds)
        self.taken += self.taken_per_s * seconds
        self.env.core_wait_s += self.waited_share * seconds

    def serve(self, seconds: float, readers: int = 1) -> float:
        """Readers that ask for the next range as soon as they have one; bytes a second of all of them."""
        end, total, ready = self.env.now() + seconds, 0, [self.env.now()] * readers
        while min(ready) < end:
            reader = ready.index(min(ready))
            if ready[reader] > self.env.now():
                self.pass_time(ready[reader] - self.env.now())
            turn = self.pace.turn(WANTED)
            total += turn.max_bytes
            ready[reader] += turn.hold_s + 0.001
            self.pace.served(turn, turn.max_bytes)
        return total / seconds

    @property
    def is_free(self) -> bool:
        return self.pace.turn(WANTED) == (0.0, WANTED)


BUSY = (2 * MIN_TAKEN_BYTES_PER_S, 2 * MIN_WAITED_SHARE)


@pytest.mark.parametrize("readers", [1, 3, 40])
def test_a_busy_node_serves_what_is_configured_whoever_asks(readers: int):
    node = Node(*BUSY)
    node.serve(2.0, readers)
    assert node.serve(10.0, readers) == pytest.approx(LEAST, rel=0.15)


@pytest.mark.parametrize(
    ("taken_per_s", "waited_share"),
    [(MIN_TAKEN_BYTES_PER_S / 2, 0.5), (100 << 20, MIN_WAITED_SHARE / 2), (0, 0)],
)
def test_a_node_that_takes_little_or_has_cores_enough_holds_nothing_back(taken_per_s: float, waited_share: float):
    node = Node(taken_per_s, waited_share)
    for _ in range(100):
        node.pass_time(WINDOW_S)
        assert node.is_free


def test_nothing_is_held_back_if_nothing_is_configured():
    node = Node(*BUSY, least=0)
    for _ in range(100):
        node.pass_time(WINDOW_S)
        assert node.is_free


@pytest.mark.parametrize("pass_time", [Node.serve, Node.pass_time], ids=["a job goes on", "another one comes later"])
def test_reading_is_free_again_soon_after_the_sends(pass_time: Callable[[Node, float], object]):
    node = Node(*BUSY)
    node.serve(3.0)
    assert not node.is_free
    node.taken_per_s = 0
    pass_time(node, 2.0)
    assert node.is_free


def test_no_read_waits_long_and_none_gets_next_to_nothing():
    node = Node(*BUSY)
    node.serve(3.0)
    turns = [node.pace.turn(WANTED) for _ in range(1000)]
    assert max(turn.hold_s for turn in turns) == MAX_HOLD_S
    assert min(turn.max_bytes for turn in turns) == MIN_READ_BYTES
    assert turns[0].max_bytes <= LEAST / READS_PER_S
    node.pass_time(MAX_HOLD_S + 1)
    assert node.pace.turn(WANTED).hold_s == 0, "what a crowd was promised holds nobody up later"


def test_an_entry_that_is_more_than_the_turn_is_made_up_for():
    node = Node(*BUSY)
    node.serve(3.0)
    node.pass_time(1.0)
    turn = node.pace.turn(WANTED)
    node.pace.served(turn, LEAST // 2)
    assert node.pace.turn(WANTED).hold_s == pytest.approx(0.5, abs=0.01)
