"""Injectors of faults that need more than a rule or a signal."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fake_target import DERIVED, MEMBERS, FakeTarget, drawn
from histories import History

from dledger_chaos.checkers.recovery import struck_faults
from dledger_chaos.checkers.wrong_clocks import CLOCK_KINDS, _collect_wrong_clocks
from dledger_chaos.disk.control import Rule
from dledger_chaos.errors import TargetError
from dledger_chaos.faults.base import as_json
from dledger_chaos.faults.composed import Act, Composed
from dledger_chaos.faults.derived import PARTS, DerivedRot, Part
from dledger_chaos.faults.disk import DiskRules
from dledger_chaos.faults.files import FewFiles
from dledger_chaos.faults.founding import SecondFounding
from dledger_chaos.history import Recorder, read_events
from dledger_chaos.nemesis import Nemesis
from dledger_chaos.signalled import SignalledNodes

NODE = MEMBERS[1]


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, int]:
    """Return the number of changed bits of each file, or -1 if it is gone."""
    return {
        path: -1
        if path not in after
        else sum((old ^ new).bit_count() for old, new in zip(data, after[path], strict=True))
        for path, data in before.items()
        if after.get(path) != data
    }


@pytest.mark.parametrize(("part", "name"), list(zip(PARTS, DERIVED, strict=True)))
@pytest.mark.parametrize(("bits", "found"), [(1, 1), (0, -1)])
async def test_bit_rot_changes_written_bits_in_the_chosen_part_only(
    tmp_path, part: Part, name: str, bits: int, found: int
):
    target = FakeTarget(tmp_path)
    before = target.bytes()
    await DerivedRot((NODE,), part, bits, running=True, seed=7).inject(target)
    assert changed(before, target.bytes()) == {f"{tmp_path}/{NODE}/{name}": found}
    assert NODE in target.running


async def test_a_part_that_was_never_written_cannot_rot(tmp_path):
    target = FakeTarget(tmp_path)
    (tmp_path / NODE / "keyindex/1").write_bytes(bytes(100))
    with pytest.raises(TargetError, match="no keyindex to spoil"):
        await DerivedRot((NODE,), "keyindex", 1, running=True, seed=7).inject(target)


async def test_the_open_file_fault_leaves_a_node_the_given_number_of_files(tmp_path):
    target = FakeTarget(tmp_path)
    held = [(tmp_path / NODE / name).open("rb") for name in DERIVED]
    fault = FewFiles((NODE,), 1)
    await fault.inject(target)
    assert target.disk(NODE).held[fault] == (Rule("open", most_open=len(held) + 1),)
    await fault.heal(target)
    for file in held:
        file.close()
    target.running.discard(NODE)
    with pytest.raises(TargetError, match="does not run"):
        await fault.inject(target)


async def test_a_second_founding_begins_with_an_empty_directory_and_perhaps_cut_off(tmp_path):
    faults = [drawn("second-founding", seed) for seed in range(8)]
    assert {bool(fault.cut_off) for fault in faults} == {True, False}
    target = FakeTarget(tmp_path)
    fault = SecondFounding((NODE,), next(fault.cut_off for fault in faults if fault.cut_off))
    await fault.inject(target)
    assert target.harm == [f"kill {(NODE,)}", f"wipe {NODE}", f"found {NODE}"]
    assert target.mesh.held
    await fault.heal(target)
    assert not target.mesh.held


def test_the_three_at_once_fault_combines_three_kinds():
    for seed in range(20):
        fault = drawn("three-at-once", seed)
        assert len({type(act.fault) for act in fault.acts}) == 3
        assert {node for act in fault.acts for node in act.fault.nodes} == set(fault.nodes)


@pytest.mark.parametrize("inside", [False, True])
async def test_a_node_may_end_over_a_failing_disk_also_where_that_is_a_part_of_a_fault(tmp_path, inside):
    part = drawn("write-fails", 1)
    whole = Composed(part.nodes, (drawn("three-at-once", 1).acts[0], Act(0.0, part))) if inside else part
    nemesis = Nemesis(FakeTarget(tmp_path), None, iter(()))  # type: ignore[arg-type]  # nothing is recorded
    assert not nemesis.may_end(part.nodes[0], 0.0)
    assert nemesis._begin_trouble(whole) is not None
    assert nemesis.may_end(part.nodes[0], 0.0)


@pytest.mark.parametrize(("permille", "excused"), [(780, False), (1000, True)])
async def test_a_node_may_end_at_its_start_on_a_disk_that_others_have_filled(tmp_path, permille, excused):
    filled = DiskRules(("n0",), (Rule("space", used_permille=permille),))
    nemesis = Nemesis(FakeTarget(tmp_path), None, iter(()))  # type: ignore[arg-type]  # nothing is recorded
    nemesis._begin_trouble(Composed(("n0",), (Act(0.0, filled),)))
    assert [nemesis.may_end("n0", served_s) for served_s in (0.0, math.inf)] == [False, excused]


@dataclass(frozen=True)
class StartsOnlyWithRoom:
    """Fault whose healing starts a node, which fails as long as a rule holds the node's disk."""

    nodes: tuple[str, ...]

    async def inject(self, target):
        await target.kill(self.nodes)

    async def heal(self, target):
        if target.disk(self.nodes[0]).held:
            raise TargetError("no room")
        await target.start_node(self.nodes[0])


async def test_a_part_that_cannot_heal_before_another_is_healed_behind_it(tmp_path):
    """Otherwise the rules of a full disk stayed for the rest of the run, as in seed 14 of the swarm."""
    target = FakeTarget(tmp_path)
    filled = DiskRules((NODE,), (Rule("space", used_permille=1000),))
    whole = Composed((NODE,), (Act(0.0, filled), Act(0.0, StartsOnlyWithRoom((NODE,)))))
    await whole.inject(target)
    await whole.heal(target)
    assert not target.disk(NODE).held
    assert NODE in target.running


async def test_a_part_that_can_never_heal_is_an_error_and_keeps_no_other_from_healing(tmp_path):
    target = FakeTarget(tmp_path)
    target.disk(NODE).hold("another fault", (Rule("space", used_permille=1000),))
    filled = DiskRules((NODE,), (Rule("space", used_permille=1000),))
    whole = Composed((NODE,), (Act(0.0, filled), Act(0.0, StartsOnlyWithRoom((NODE,)))))
    await whole.inject(target)
    with pytest.raises(TargetError, match="no room"):
        await whole.heal(target)
    assert list(target.disk(NODE).held) == ["another fault"]


class OneProcess(SignalledNodes):
    """Node that is a process of the test."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def pid(self, node_id):
        return self._pid

    async def _launch(self, node_id):
        raise NotImplementedError

    def _find_disk_directories(self, node_id):
        raise NotImplementedError


@pytest.fixture
def sleeper() -> Iterator[int]:
    pid = os.fork()
    if not pid:
        while True:
            signal.pause()
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def stands_still(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


async def test_a_slowed_process_alternates_between_pause_and_run_until_healed(sleeper):
    node = OneProcess(sleeper)
    node.slow_down("n", 0.001, 0.001)
    for wanted in (True, False, True, False):
        while stands_still(sleeper) != wanted:  # noqa: ASYNC110 - no event reports on another process
            await asyncio.sleep(0)
    node.resume("n")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not stands_still(sleeper)


def test_checkers_see_each_of_three_faults_that_strike_at_once(tmp_path):
    """A wrong clock or a full disk excuses the same findings, alone or beside two other faults."""
    drawn_faults = [drawn("three-at-once", seed) for seed in range(40)]
    with Recorder(tmp_path) as recorder:
        for number, fault in enumerate(drawn_faults):
            recorder.event("fault-begin", "three-at-once", id=number, nodes=fault.nodes, fault=as_json(fault))
    events = read_events(tmp_path)
    struck = [(event.fields["id"], kind) for event, kind, _ in struck_faults(events)]
    assert struck == [(number, kind) for number, fault in enumerate(drawn_faults) for kind in fault.kinds]
    run = History().run()
    run.events[:] = events
    clocks = [number for number, kind in struck if kind in CLOCK_KINDS]
    assert len(_collect_wrong_clocks(run)) == len(clocks) > 3
