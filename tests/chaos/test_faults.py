"""Every kind of fault can be drawn, describes itself, and leaves nothing behind once it is healed."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import msgspec
import pytest
from fake_target import MEMBERS, FakeTarget, drawn

from dledger_chaos.errors import ChaosError
from dledger_chaos.faults import KINDS, Surroundings, as_json, kinds_named
from dledger_chaos.nemesis import schedule
from dledger_chaos.pace import Pace
from dledger_chaos.toxiproxy.mesh import NAMESRV, PROXY_NAMES, SECOND_NAMESRV

SEEDS = range(6)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass between the parts of a composed fault."""

    async def at_once(_seconds: float) -> None:
        pass

    monkeypatch.setattr(asyncio, "sleep", at_once)


@pytest.mark.parametrize("name", KINDS)
async def test_a_fault_harms_the_nodes_it_names_and_is_healed_without_a_trace(name, tmp_path):
    for seed in SEEDS:
        target = FakeTarget(tmp_path / str(seed))
        before, files = target.state(), target.bytes()
        fault = drawn(name, seed)
        assert (fault, hash(fault)) == (drawn(name, seed), hash(drawn(name, seed)))
        assert json.loads(msgspec.json.encode(as_json(fault)))["nodes"] == list(fault.nodes)
        assert set(fault.nodes) <= {*MEMBERS, NAMESRV, *PROXY_NAMES}
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


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.alone])
def test_a_fault_that_damages_disks_strikes_one_node(name):
    if name not in {"rolling-restart", "shrunk-group", "few-descriptors"}:  # these damage nothing
        assert {len(drawn(name, seed).nodes) for seed in SEEDS} == {1}


def test_faults_can_be_drawn_without_a_leader():
    for kind in KINDS.values():
        kind.draw(Surroundings(random.Random(1), MEMBERS, None))


def test_the_name_server_kill_never_strikes_both_at_a_time():
    kill, both = KINDS["kill-namesrv"], (NAMESRV, SECOND_NAMESRV)
    surroundings = [Surroundings(random.Random(seed), MEMBERS, None, both) for seed in SEEDS]
    assert {kill.draw(one).nodes for one in surroundings} == {(NAMESRV,), (SECOND_NAMESRV,)}
    for struck in both:
        while_struck = [replace(one, struck=frozenset({struck})) for one in surroundings]
        assert {kill.draw(one).nodes for one in while_struck} == {(struck,)}


def test_faults_of_proxies_leave_one_of_two_usable():
    for name in ("kill-proxy", "stop-proxy", "partition-proxy"):
        surroundings = [Surroundings(random.Random(seed), MEMBERS, None) for seed in SEEDS]
        assert {KINDS[name].draw(one).nodes for one in surroundings} == {(proxy,) for proxy in PROXY_NAMES}
        for struck in PROXY_NAMES:
            while_struck = [replace(one, struck=frozenset({struck})) for one in surroundings]
            assert {KINDS[name].draw(one).nodes for one in while_struck} == {(struck,)}


def test_a_schedule_depends_on_its_seed_alone_and_has_every_kind_in_every_round():
    kinds = list(KINDS.values())

    def first(seed: int, count: int = 3 * len(kinds)):
        steps = schedule(seed, kinds, 60.0, Pace())
        return [next(steps) for _ in range(count)]

    assert first(7) == first(7) != first(8)
    assert {step.kind.name for step in first(7, len(kinds))} == set(KINDS)
    assert max(step.hold_s for step in first(7)) <= 10.0


def test_fault_kinds_are_chosen_by_name_or_family_within_the_targets_abilities():
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
