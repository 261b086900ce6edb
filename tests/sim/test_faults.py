"""Simulated faults: what they do, and that every fault of the chaos rig has a simulated twin, or a reason why not."""

import re
from pathlib import Path
from random import Random

from dledger.types import Lane
from dledger_chaos.faults import KINDS as CHAOS_KINDS
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case, strike_of
from dledger_sim.log.faults import ClockDrift, Deposed, Drain, LongPause, RollingRestart, SlowClose, Throttle
from dledger_sim.log.group import SimGroup
from dledger_sim.log.kinds import DRAWS, KINDS
from dledger_sim.log.plan import draw_plan
from dledger_sim.log.run import AWAKE_S

LAB = "dledger_sim.brokers.lab"
ROOT = Path(__file__).parents[2]
EVERY_S = 0.01


class Sending:
    """Numbered messages from n0 to n1, and when they arrived."""

    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self.arrived: list[tuple[int, float]] = []

    def send(self, number: int, size: int, lane: Lane = Lane.BULK) -> None:
        life = self._group.nodes["n0"].life
        assert life is not None
        now = self._group.scheduler
        taken = self._group.network.send(
            life.replica_id, "n1", lane, size, lambda _: self.arrived.append((number, now.now))
        )
        assert taken

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.arrived]


def test_a_throttled_link_carries_so_many_bytes_a_second_in_order(group: SimGroup) -> None:
    sending, began = Sending(group), group.scheduler.now
    Throttle((("n0", "n1"),), 10_000, 60.0).inject(group)
    for number in range(5):
        sending.send(number, 5_000)
    group.scheduler.run_until(began + 2.4)
    assert sending.numbers == [0, 1, 2, 3]
    group.scheduler.run_until(began + 4.0)
    assert sending.numbers == [0, 1, 2, 3, 4]
    for number, at in sending.arrived:
        assert at >= began + (number + 1) * 0.5


def test_what_waits_in_a_throttled_link_goes_on_when_it_is_healed(group: SimGroup) -> None:
    sending, fault = Sending(group), Throttle((("n0", "n1"),), 0, 60.0)
    fault.inject(group)
    for number in range(3):
        sending.send(number, 1_000_000)
    group.scheduler.run_until(group.scheduler.now + 1.0)
    assert not sending.arrived
    waits = group.network.queued_bytes("n0", "n1", Lane.BULK)
    fault.heal(group)
    sending.send(3, 100)
    group.scheduler.run_until(group.scheduler.now + 0.1)
    assert sending.numbers == [0, 1, 2, 3]
    assert waits >= 3_000_000 > group.network.queued_bytes("n0", "n1", Lane.BULK)


def test_a_connection_that_is_lost_takes_with_it_what_waits_in_it(group: SimGroup) -> None:
    sending, fault = Sending(group), Throttle((("n0", "n1"),), 0, 60.0)
    fault.inject(group)
    sending.send(0, 1_000)
    group.network.cut("n0", "n1")
    fault.heal(group)
    group.scheduler.run_until(group.scheduler.now + 1.0)
    assert not sending.arrived


def test_who_loses_a_connection_that_closes_slowly_goes_on_sending_into_it(group: SimGroup) -> None:
    sending, fault = Sending(group), SlowClose((("n0", "n1"),), 1.0, 60.0)
    fault.inject(group)
    began = group.scheduler.now
    sending.send(0, 100)
    group.network.cut("n0", "n1")
    group.scheduler.run_until(began + 0.9)
    sending.send(1, 100)
    group.scheduler.run_until(began + 1.5)
    assert not sending.arrived, "what was on its way and what was sent later are lost"
    sending.send(2, 100)
    group.scheduler.run_until(began + 1.6)
    assert sending.numbers == [2]


def test_a_node_that_starts_again_has_none_of_its_connections_that_close_slowly(group: SimGroup) -> None:
    SlowClose((("n0", "n1"),), 60.0, 60.0).inject(group)
    group.kill("n0")
    group.start("n0")
    group.scheduler.run_until(group.scheduler.now + 3.0)
    sending = Sending(group)
    sending.send(0, 100)
    group.scheduler.run_until(group.scheduler.now + 0.1)
    assert sending.numbers == [0]


def test_a_deposed_leader_wakes_and_does_not_know(group: SimGroup) -> None:
    old = group.leader
    assert old is not None
    assert old.life is not None
    began, term = group.scheduler.now, old.life.replica.engine.term
    assert not Deposed(next(name for name in group.nodes if name != old.name), 3.0, 4.0).inject(group)
    fault = Deposed(old.name, 3.0, 4.0)
    assert fault.inject(group)
    group.scheduler.run_until(began + 3.1)
    assert old.life.replica.is_ready
    new = group.leader
    assert new is not old
    assert new is not None
    assert new.life is not None
    assert new.life.replica.engine.term > term
    fault.heal(group)
    group.scheduler.run_until(began + 8.0)
    assert group.healthy()


def test_a_node_that_drains_hands_over_stops_and_comes_back(group: SimGroup) -> None:
    leader = group.leader
    assert leader is not None
    began, life = group.scheduler.now, leader.life
    fault = Drain(leader.name, 1.0, 2.0)
    assert fault.inject(group)
    assert not Drain(leader.name, 1.0, 2.0).inject(group)
    assert set(group.leaving) == {leader.name}
    group.scheduler.run_until(began + 0.9)
    assert leader.life is life
    assert group.leader is not None
    assert group.leader is not leader
    group.scheduler.run_until(began + 1.9)
    assert leader.life is None
    fault.heal(group)
    group.scheduler.run_until(began + 6.0)
    assert group.healthy()
    assert not group.leaving


def test_a_node_that_still_drains_when_trouble_ends_is_restarted_before_the_group_is_whole(group: SimGroup) -> None:
    leader = group.leader
    assert leader is not None
    began, life = group.scheduler.now, leader.life
    fault = Drain(leader.name, 3.0, 4.0)
    assert fault.inject(group)
    group.scheduler.run_until(began + 1.0)
    fault.heal(group)
    assert not group.healthy()
    group.scheduler.run_until(began + 2.0)
    assert leader.life is not life
    group.start(leader.name)
    group.scheduler.run_until(began + 6.0)
    assert group.healthy()


def test_a_rolling_restart_restarts_every_node_and_never_two_at_once(group: SimGroup) -> None:
    lives = {name: node.life for name, node in group.nodes.items()}
    fault = RollingRestart(tuple(group.nodes), 0.2, 30.0)
    assert fault.inject(group)
    assert not RollingRestart(tuple(group.nodes), 0.2, 30.0).inject(group), "there is one at a time"
    deadline = group.scheduler.now + 20.0
    while not group.witness.happened["rolling restart finished"]:
        assert group.scheduler.now < deadline
        group.scheduler.run_until(group.scheduler.now + EVERY_S)
        assert sum(node.life is None for node in group.nodes.values()) <= 1
    assert all(node.life is not None and node.life is not lives[name] for name, node in group.nodes.items())
    fault.heal(group)
    assert RollingRestart(tuple(group.nodes), 0.2, 30.0).inject(group)


def test_a_rolling_restart_ends_when_it_is_healed(group: SimGroup) -> None:
    fault = RollingRestart(tuple(group.nodes), 0.2, 30.0)
    fault.inject(group)
    group.scheduler.run_until(group.scheduler.now + 0.1)
    fault.heal(group)
    group.scheduler.run_until(group.scheduler.now + 10.0)
    assert not group.witness.happened["rolling restart finished"]


def test_one_node_at_a_time_stands_still_for_long(group: SimGroup) -> None:
    began = group.scheduler.now
    assert LongPause("n0", 30.0).inject(group)
    assert not LongPause("n1", 5.0).inject(group)
    assert group.paused_until == began + 30.0
    assert group.longest_pause_s == 30.0
    group.scheduler.run_until(began + 31.0)
    assert group.healthy()
    assert LongPause("n1", 5.0).inject(group)


def test_clients_go_on_until_the_longest_pause_is_over() -> None:
    """Also behind the end of all other trouble."""
    strikes = (strike_of(3.0, "long-pause", LongPause("n1", 20.0)),)
    outcome = judge(Case("broker", 1, 5.0, strikes=strikes), LAB)
    assert outcome.violation is None
    assert outcome.seconds > 23.0 + AWAKE_S
    short = judge(Case("broker", 1, 5.0, strikes=()), LAB)
    assert outcome.counts["ok"] > 1.5 * short.counts["ok"]


def test_a_wall_clock_that_drifts_is_set_right_again(group: SimGroup) -> None:
    life = group.nodes["n0"].life
    assert life is not None
    fault, before = ClockDrift("n0", 0.1, 60.0), life.environment.wall_ms()
    fault.inject(group)
    group.scheduler.run_until(group.scheduler.now + 10.0)
    assert life.environment.wall_ms() == before + 11_000
    fault.heal(group)
    assert life.environment.wall_ms() == before + 10_000


def test_a_seed_draws_the_same_plan_from_the_same_kinds_when_there_are_more() -> None:
    kinds = tuple(sorted(KINDS))[::2]
    assert draw_plan(Random(1), kinds) == draw_plan(Random(1), tuple(reversed(kinds)))
    assert set(draw_plan(Random(1), kinds).kinds) <= set(kinds)


def test_the_page_lists_every_fault_of_the_chaos_rig_with_its_twins() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    section = page.partition("### Twins")[2].partition("\n#")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row[0])]
    assert sorted(listed) == sorted(CHAOS_KINDS)
    twins = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row[1])}
    assert twins <= set(DRAWS)
    only_here = set(re.findall(r"`([a-z-]+)`", section.partition("Simulated only:")[2]))
    assert twins | only_here == set(DRAWS)
