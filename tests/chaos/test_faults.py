"""Every kind of fault can be drawn, says what it is, and leaves nothing behind once it is healed."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import msgspec
import pytest
from fake_target import MEMBERS, FakeTarget

from dledger_chaos.errors import ChaosError
from dledger_chaos.faults import KINDS, Surroundings, as_json, kinds_named
from dledger_chaos.nemesis import schedule
from dledger_chaos.pace import Pace
from dledger_chaos.toxiproxy.mesh import NAMESRV, SECOND_NAMESRV

SEEDS = range(6)


def drawn(name: str, seed: int):
    return KINDS[name].draw(Surroundings(random.Random(seed), MEMBERS, MEMBERS[0]))


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the parts of a composed fault."""

    async def at_once(_seconds: float) -> None:
        pass

    monkeypatch.setattr(asyncio, "sleep", at_once)


@pytest.mark.parametrize("name", KINDS)
async def test_a_fault_harms_the_nodes_it_names_and_is_healed_without_a_trace(name, tmp_path):
    for seed in SEEDS:
        target = FakeTarget(tmp_path / str(seed))
        before, files = target.state(), target.bytes()
        fault = drawn(name, seed)
        assert set(fault.nodes) <= {*MEMBERS, NAMESRV}
        assert fault.nodes
        await fault.inject(target)
        assert target.state() != before or target.harm or target.bytes() != files
        await fault.heal(target)
        assert target.state() == before


async def test_a_deposed_leader_wakes_while_it_is_still_cut_off(tmp_path):
    target = FakeTarget(tmp_path)
    fault = drawn("deposed-leader", 1)
    await fault.inject(target)
    assert target.harm == [f"pause {MEMBERS[0]}"]
    assert not target.paused
    assert target.mesh.held


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_is_a_value_that_can_be_written_down(name):
    fault = drawn(name, 1)
    assert fault == drawn(name, 1)
    assert hash(fault) == hash(drawn(name, 1))
    assert json.loads(msgspec.json.encode(as_json(fault)))["nodes"] == list(fault.nodes)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.alone])
def test_what_damages_a_disk_damages_one_node(name):
    if name not in {"rolling-restart", "shrunk-group"}:
        assert {len(drawn(name, seed).nodes) for seed in SEEDS} == {1}


def test_faults_are_drawn_while_nobody_leads():
    for kind in KINDS.values():
        kind.draw(Surroundings(random.Random(1), MEMBERS, None))


def test_one_of_two_name_servers_is_killed_at_a_time():
    kill, both = KINDS["kill-namesrv"], (NAMESRV, SECOND_NAMESRV)
    surroundings = [Surroundings(random.Random(seed), MEMBERS, None, both) for seed in SEEDS]
    assert {kill.draw(one).nodes for one in surroundings} == {(NAMESRV,), (SECOND_NAMESRV,)}
    for struck in both:
        while_struck = [replace(one, struck=frozenset({struck})) for one in surroundings]
        assert {kill.draw(one).nodes for one in while_struck} == {(struck,)}


def test_a_schedule_depends_on_its_seed_alone_and_has_every_kind_in_every_round():
    kinds = list(KINDS.values())

    def first(seed: int, count: int = 3 * len(kinds)):
        steps = schedule(seed, kinds, 60.0, Pace())
        return [next(steps) for _ in range(count)]

    assert first(7) == first(7) != first(8)
    assert {step.kind.name for step in first(7, len(kinds))} == set(KINDS)
    assert max(step.hold_s for step in first(7)) <= 10.0


def test_kinds_are_chosen_by_name_and_by_family_as_far_as_the_target_can_take_them():
    assert [kind.name for kind in kinds_named(["kill-all", "clock"], frozenset({"process", "clock"}))] == [
        "kill-all",
        "clock-jump",
        "clock-drift",
    ]
    assert {kind.family for kind in kinds_named(["all"], frozenset({"network"}))} == {"network"}
    with pytest.raises(ChaosError, match="no fault or family 'earthquake'"):
        kinds_named(["earthquake"], frozenset({"network"}))
    with pytest.raises(ChaosError, match="cannot take 'deposed-leader'"):
        kinds_named(["deposed-leader"], frozenset({"network"}))
    with pytest.raises(ChaosError, match="cannot take 'power'"):
        kinds_named(["power"], frozenset({"network"}))
