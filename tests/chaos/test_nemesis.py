"""The nemesis records its actions, runs damaging faults alone, and always heals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fake_target import MEMBERS, FakeTarget

from dledger_chaos.errors import TargetError
from dledger_chaos.faults import FaultKind, kinds_named
from dledger_chaos.history import Event, Recorder, read_events
from dledger_chaos.nemesis import Nemesis, Step
from dledger_chaos.pace import MAX_OVERLAP
from dledger_chaos.toxiproxy.mesh import NAMESRV, SECOND_NAMESRV

ROUND_S = 0.2


@dataclass(frozen=True)
class Stubborn:
    """Fault that can be neither injected nor healed."""

    nodes: tuple[str, ...]

    async def inject(self, target):
        raise TargetError("no")

    async def heal(self, target):
        raise TargetError("still no")


def steps(kinds: list[FaultKind], hold_s: float, pause_s: float = 0.001) -> Iterator[Step]:
    number = 0
    while kinds:
        for kind in kinds:
            number += 1
            yield Step(pause_s, kind, hold_s, number)


async def rampage(tmp_path, kinds: list[FaultKind], hold_s: float = 0.01) -> tuple[FakeTarget, list[Event]]:
    target = FakeTarget(tmp_path / "target")
    with Recorder(tmp_path / "run") as recorder:
        nemesis = Nemesis(target, recorder, steps(kinds, hold_s))
        await nemesis.run(ROUND_S)
        await nemesis.heal_all()
    return target, read_events(tmp_path / "run")


def overlaps(events: list[Event]) -> list[set[str]]:
    """Return the kinds in force after each beginning."""
    active: dict[object, str] = {}
    found = []
    for event in events:
        if event.kind == "fault-begin":
            active[event.fields["id"]] = event.name
            found.append(set(active.values()))
            assert len(active) <= MAX_OVERLAP
        elif event.kind == "fault-end":
            del active[event.fields["id"]]
    assert not active, "everything that began has ended"
    return found


async def test_faults_overlap_up_to_a_bound_and_each_is_healed(tmp_path):
    kinds = kinds_named(["pause-leader", "partition-one-way", "clock-jump", "disk-full-one"], FakeTarget.capabilities)
    target, events = await rampage(tmp_path, kinds)
    assert max(map(len, overlaps(events))) == MAX_OVERLAP
    assert target.state() == FakeTarget(tmp_path / "fresh").state()
    assert not [event for event in events if event.kind == "note"]


async def test_the_nemesis_kills_one_name_server_at_a_time_and_restarts_both(tmp_path, monkeypatch):
    both = {NAMESRV, SECOND_NAMESRV}
    monkeypatch.setattr(FakeTarget, "others", tuple(sorted(both)))
    monkeypatch.setattr(FakeTarget, "capabilities", FakeTarget.capabilities | {"namesrv"})
    target, events = await rampage(tmp_path, kinds_named(["kill-namesrv"], FakeTarget.capabilities))
    held: dict[object, str] = {}
    killed = set()
    for event in (event for event in events if event.name == "kill-namesrv"):
        if event.kind == "fault-begin":
            (held[event.fields["id"]],) = event.fields["nodes"]
            killed |= set(held.values())
            assert len(set(held.values())) == 1
        else:
            del held[event.fields["id"]]
    assert killed == both
    assert both <= target.running


async def test_a_damaging_fault_has_the_cluster_to_itself_and_without_faults_the_time_passes_in_peace(tmp_path):
    kinds = kinds_named(["pause-follower", "wipe", "clock-drift", "segment-deleted"], FakeTarget.capabilities)
    _, events = await rampage(tmp_path, kinds)
    seen = overlaps(events)
    assert {"wipe"} in seen or {"segment-deleted"} in seen
    assert all(len(active) == 1 for active in seen if active & {"wipe", "segment-deleted"})
    target, events = await rampage(tmp_path / "peace", [])
    assert (events, target.harm) == ([], [])


async def test_a_fault_that_fails_to_inject_and_to_heal_is_noted_and_ends(tmp_path):
    kind = FaultKind("stubborn", "process", "", lambda _: Stubborn(MEMBERS[:1]))
    _, events = await rampage(tmp_path, [kind])
    overlaps(events)
    notes = {event.name for event in events if event.kind == "note"}
    assert notes == {"stubborn not injected: no", "stubborn not healed: still no"}
    assert {event.fields["injected"] for event in events if event.kind == "fault-end"} == {False}


@pytest.mark.parametrize(
    ("name", "running", "starting"),
    [("fsync-fails", True, True), ("disk-full-one", False, True), ("fsync-slow", False, False)],
)
async def test_a_node_may_stop_by_itself_only_around_faults_of_its_disk(tmp_path, name, running, starting):
    """A full disk excuses a stop at a node's start only, failed syncs at any time, and a slow disk never."""
    target = FakeTarget(tmp_path / "target")
    (kind,) = kinds_named([name], target.capabilities)
    seen = []
    with Recorder(tmp_path / "run") as recorder:
        nemesis = Nemesis(target, recorder, iter([Step(0.0, kind, 0.0, 1)]))
        seen.append([nemesis.may_end(node, 0.0) for node in MEMBERS])
        await nemesis.run(ROUND_S)
        seen.append([nemesis.may_end(node, 0.0) for node in MEMBERS])
        seen.append([nemesis.may_end(node, asyncio.get_running_loop().time()) for node in MEMBERS])
    (begin,) = [event for event in read_events(tmp_path / "run") if event.kind == "fault-begin"]
    hit = [[node] == begin.fields["nodes"] for node in MEMBERS]
    assert seen == [[False] * 3, [one and running for one in hit], [one and starting for one in hit]]


@pytest.mark.parametrize(("disk", "expected"), [("fsync-slow", True), ("disk-full-all", False)])
async def test_a_node_that_does_not_start_is_trouble_unless_its_disk_explains_it(tmp_path, disk, expected):
    target = FakeTarget(tmp_path / "target")
    stubborn = FaultKind("stubborn", "process", "", lambda s: Stubborn((s.one(),)))
    (kind,) = kinds_named([disk], target.capabilities)
    with Recorder(tmp_path / "run") as recorder:
        both = iter([Step(0.0, kind, ROUND_S / 2, 1), Step(0.0, stubborn, 0.0, 2)])
        await Nemesis(target, recorder, both).run(ROUND_S)
    notes = {event.name: event.fields["trouble"] for event in read_events(tmp_path / "run") if event.kind == "note"}
    assert notes == {"stubborn not injected: no": False, "stubborn not healed: still no": expected}


async def test_a_cluster_that_does_not_become_whole_after_a_fault_is_trouble(tmp_path, monkeypatch):
    async def never(_):
        raise TargetError("no leader after 90 s")

    monkeypatch.setattr("dledger_chaos.nemesis.wait_converged", never)
    _, events = await rampage(tmp_path, kinds_named(["wipe"], frozenset({"disk"})))
    assert [event.fields["trouble"] for event in events if event.name.startswith("not converged")][:1] == [True]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("dledger_chaos.convergence._POLL_S", 0.001)
