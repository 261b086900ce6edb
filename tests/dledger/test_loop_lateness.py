"""How late the event loop's timers fire is counted, so that a loop that is held is seen from outside."""

from pathlib import Path

from node_group import SECRET, SEGMENT_BYTES, Journal, until

from dledger import Node, NodeConfig
from dledger.replica.lateness import BOUNDS_S, TimedLoop
from dledger_broker.testing import FakeEnvironment


class Held(FakeEnvironment):
    """A loop that gets to its timers late."""

    def hold(self, seconds: float) -> None:
        """Let time pass in which nothing is called."""
        self._now += seconds


def test_timers_are_counted_by_how_late_they_fire():
    env = Held()
    timed = TimedLoop(env)
    fired = []
    for late_s in (0.0, 0.0, 0.001, 0.004, 0.3, 1.5, 60.0):
        timed.call_later(0.05, lambda: fired.append(env.now()))
        env.hold(0.05 + late_s)
        env.advance(0.0)
    assert len(fired) == 7
    found = timed.lateness()
    assert dict(zip(BOUNDS_S, found.at_most, strict=False)) == {
        0.001: 2,
        0.005: 4,
        0.02: 4,
        0.1: 4,
        0.5: 5,
        1.0: 5,
        5.0: 6,
    }
    assert (found.at_most[-1], round(found.seconds, 3)) == (7, 61.805)


async def test_a_node_counts_every_tick(tmp_path: Path):
    config = NodeConfig("c", "g", "n0", tmp_path, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    async with Node(config, Journal()) as node:
        await until(lambda: node.is_ready, "a leader")
        counted = node.status().loop_late.at_most[-1]
        await until(lambda: node.status().loop_late.at_most[-1] > counted + 2, "ticks")
