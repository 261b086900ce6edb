"""Simulated faults do what they say. Every fault of the chaos rig has a simulated twin, or a reason why not."""

import re
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest

from dledger.errors import LogFullError
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta, Lane
from dledger_chaos.faults import KINDS as CHAOS_KINDS
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case, strike_of
from dledger_sim.log.faults import ClockDrift, Deposed, Drain, LongPause, RollingRestart, SlowClose, Throttle
from dledger_sim.log.group import SimGroup, SimNode
from dledger_sim.log.kinds import DRAWS, KINDS
from dledger_sim.log.machine import encode_unit
from dledger_sim.log.plan import draw_plan
from dledger_sim.log.run import AWAKE_S

LAB = "dledger_sim.brokers.lab"
ROOT = Path(__file__).parents[2]
EVERY_S = 0.01


def run(group: SimGroup, seconds: float) -> None:
    group.scheduler.run_until(group.scheduler.now + seconds)


class Sending:
    """Numbered messages from n0 to n1, and their times of arrival."""

    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self.arrived: list[tuple[int, float]] = []

    def send(self, number: int, size: int = 100) -> None:
        sender, clock = self._group.nodes["n0"].life.replica_id, self._group.scheduler
        assert self._group.network.send(
            sender, "n1", Lane.BULK, size, lambda _: self.arrived.append((number, clock.now))
        )

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.arrived]


@pytest.fixture
def sending(group: SimGroup) -> Sending:
    return Sending(group)


LINK = (("n0", "n1"),)


def test_a_throttled_link_delivers_in_order_at_its_rate(group: SimGroup, sending: Sending) -> None:
    began = group.scheduler.now
    Throttle(LINK, 10_000, 60.0).inject(group)
    for number in range(5):
        sending.send(number, 5_000)
    run(group, 2.4)
    assert sending.numbers == [0, 1, 2, 3]
    run(group, 1.6)
    assert sending.numbers == [0, 1, 2, 3, 4]
    for number, at in sending.arrived:
        assert at >= began + (number + 1) * 0.5


def test_a_healed_throttled_link_delivers_its_backlog(group: SimGroup, sending: Sending) -> None:
    fault = Throttle(LINK, 0, 60.0)
    fault.inject(group)
    for number in range(3):
        sending.send(number, 1_000_000)
    run(group, 1.0)
    assert not sending.arrived
    waits = group.network.queued_bytes("n0", "n1", Lane.BULK)
    fault.heal(group)
    sending.send(3)
    run(group, 0.1)
    assert sending.numbers == [0, 1, 2, 3]
    assert waits >= 3_000_000 > group.network.queued_bytes("n0", "n1", Lane.BULK)


def test_a_lost_connection_loses_its_waiting_messages(group: SimGroup, sending: Sending) -> None:
    fault = Throttle(LINK, 0, 60.0)
    fault.inject(group)
    sending.send(0)
    group.network.cut("n0", "n1")
    fault.heal(group)
    run(group, 1.0)
    assert not sending.arrived


def test_messages_sent_into_a_slowly_closing_connection_are_lost(group: SimGroup, sending: Sending) -> None:
    SlowClose(LINK, 1.0, 60.0).inject(group)
    sending.send(0)
    group.network.cut("n0", "n1")
    run(group, 0.9)
    sending.send(1)
    run(group, 0.6)
    assert not sending.arrived, "what was on its way and what was sent later are lost"
    sending.send(2)
    run(group, 0.1)
    assert sending.numbers == [2]
    SlowClose(LINK, 60.0, 60.0).inject(group)
    group.kill("n0")
    group.start("n0")
    run(group, 3.0)
    sending.send(3)
    run(group, 0.1)
    assert sending.numbers == [2, 3], "a restarted node has no slowly closing connections"


def test_a_deposed_leader_wakes_and_does_not_know(group: SimGroup, leader: SimNode) -> None:
    term = leader.life.replica.engine.term
    assert not Deposed(next(name for name in group.nodes if name != leader.name), 3.0, 4.0).inject(group)
    fault = Deposed(leader.name, 3.0, 4.0)
    assert fault.inject(group)
    run(group, 3.1)
    assert leader.life.replica.is_ready
    assert group.leader is not leader
    assert group.leader.life.replica.engine.term > term
    fault.heal(group)
    run(group, 4.9)
    assert group.healthy()


def test_a_node_that_drains_hands_over_stops_and_comes_back(group: SimGroup, leader: SimNode) -> None:
    life, fault = leader.life, Drain(leader.name, 1.0, 2.0)
    assert fault.inject(group)
    assert not Drain(leader.name, 1.0, 2.0).inject(group)
    assert set(group.leaving) == {leader.name}
    run(group, 0.9)
    assert leader.life is life
    assert group.leader not in (leader, None)
    run(group, 1.0)
    assert leader.life is None
    fault.heal(group)
    run(group, 4.1)
    assert group.healthy()
    assert not group.leaving


def test_a_node_that_drains_at_a_healing_is_restarted_before_the_group_is_healthy(
    group: SimGroup, leader: SimNode
) -> None:
    life, fault = leader.life, Drain(leader.name, 3.0, 4.0)
    assert fault.inject(group)
    run(group, 1.0)
    fault.heal(group)
    assert not group.healthy()
    run(group, 1.0)
    assert leader.life is not life
    group.start(leader.name)
    run(group, 4.0)
    assert group.healthy()


def test_a_rolling_restart_restarts_every_node_and_never_two_at_once_until_it_is_healed(group: SimGroup) -> None:
    lives = {name: node.life for name, node in group.nodes.items()}
    fault = RollingRestart(tuple(group.nodes), 0.2, 30.0)
    assert fault.inject(group)
    assert not RollingRestart(tuple(group.nodes), 0.2, 30.0).inject(group), "there is one at a time"
    deadline = group.scheduler.now + 20.0
    while not group.witness.happened["rolling restart finished"]:
        assert group.scheduler.now < deadline
        run(group, EVERY_S)
        assert sum(node.life is None for node in group.nodes.values()) <= 1
    assert all(node.life is not None and node.life is not lives[name] for name, node in group.nodes.items())
    fault.heal(group)
    again = RollingRestart(tuple(group.nodes), 0.2, 30.0)
    assert again.inject(group)
    run(group, 0.1)
    again.heal(group)
    run(group, 10.0)
    assert group.witness.happened["rolling restart finished"] == 1


def test_only_one_node_at_a_time_pauses_for_long(group: SimGroup) -> None:
    began = group.scheduler.now
    assert LongPause("n0", 30.0).inject(group)
    assert not LongPause("n1", 5.0).inject(group)
    assert group.paused_until == began + 30.0
    assert group.longest_pause_s == 30.0
    run(group, 31.0)
    assert group.healthy()
    assert LongPause("n1", 5.0).inject(group)


def test_clients_continue_until_the_longest_pause_has_ended() -> None:
    """This holds also if all other faults end earlier."""
    strikes = (strike_of(3.0, "long-pause", LongPause("n1", 20.0)),)
    outcome = judge(Case("broker", 1, 5.0, strikes=strikes), LAB)
    assert outcome.violation is None
    assert outcome.seconds > 23.0 + AWAKE_S
    short = judge(Case("broker", 1, 5.0, strikes=()), LAB)
    assert outcome.counts["ok"] > 1.5 * short.counts["ok"]


def test_a_wall_clock_that_drifts_is_set_right_again(group: SimGroup) -> None:
    environment = group.nodes["n0"].life.environment
    fault, before = ClockDrift("n0", 0.1, 60.0), environment.wall_ms()
    fault.inject(group)
    run(group, 10.0)
    assert environment.wall_ms() == before + 11_000
    fault.heal(group)
    assert environment.wall_ms() == before + 10_000


def test_a_seed_draws_the_same_plan_from_the_same_kinds_when_there_are_more() -> None:
    kinds = tuple(sorted(KINDS))[::2]
    assert draw_plan(Random(1), kinds) == draw_plan(Random(1), tuple(reversed(kinds)))
    assert set(draw_plan(Random(1), kinds).kinds) <= set(kinds)


def test_the_page_lists_every_fault_of_the_chaos_rig_with_its_twins() -> None:
    page = (ROOT / "docs" / "proof" / "simulator.md").read_text(encoding="utf-8")
    section = page.partition("### Twins")[2].partition("\n#")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row[0])]
    assert sorted(listed) == sorted(CHAOS_KINDS)
    twins = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row[1])}
    assert twins <= set(DRAWS)
    only_here = set(re.findall(r"`([a-z-]+)`", section.partition("Simulated only:")[2]))
    assert twins | only_here == set(DRAWS)


def test_a_leader_with_a_full_disk_accepts_its_own_trims(group: SimGroup, leader: SimNode) -> None:
    """Trims bring space back. All other writes are refused."""
    replica, numbers = leader.replica, count(1)

    def write(entries: int) -> None:
        for number in islice(numbers, entries):
            unit = encode_unit(1, number, 3_000)
            replica.stage(len(unit), lambda _, unit=unit: (unit,), b"", None)  # type: ignore[misc]
            run(group, 0.02)

    write(100)
    for node in group.nodes.values():
        node.disk.fill_up(0)
    with pytest.raises(LogFullError):
        write(1_000)
    position = max(meta.position for meta in replica.store.snapshots.list())
    assert position > replica.store.first_position
    assert replica.propose_trim(position)
    run(group, 2.0)
    assert all(node.life.replica.store.first_position >= position for node in group.running if node.life is not None)


def test_a_group_with_nothing_but_its_reserve_elects_another_leader(
    group: SimGroup, leader: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first entry of a new leader takes the space that is kept back, at the leader and at its follower."""
    claim = LogStore.claim

    def claim_reserve(log: LogStore, metas: Sequence[EntryMeta], *, privileged: bool = False) -> bool:
        return privileged and claim(log, metas, privileged=True)

    def find_nothing(_log: LogStore, _need: Need) -> None:
        raise LogFullError("no space")

    monkeypatch.setattr(LogStore, "claim", claim_reserve)
    monkeypatch.setattr(LogStore, "reserve", find_nothing)
    group.kill(leader.name)
    run(group, 5.0)
    assert group.leader is not None
    assert group.leader is not leader
    assert group.leader.replica.is_ready, "its first entry is committed"
