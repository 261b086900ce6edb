"""Every kind of fault can be drawn, says what it is, and leaves nothing behind once it is healed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from dledger_chaos.errors import ChaosError
from dledger_chaos.faults import KINDS, Surroundings, as_json, kinds_named
from dledger_chaos.nemesis import schedule
from dledger_chaos.target import NodeFacts, NodeView
from dledger_chaos.toxiproxy.mesh import CLIENTS, NAMESRV, Link

MEMBERS = ("broker-a-n0", "broker-a-n1", "broker-a-n2")
SEEDS = range(6)
END = 4096


class FakeMesh:
    """Remembers who holds which links."""

    def __init__(self) -> None:
        pairs = [
            (source, target) for source in (*MEMBERS, CLIENTS) for target in (*MEMBERS, NAMESRV) if source != target
        ]
        self.links = {f"{s}-to-{t}": Link(s, t, 1, "") for s, t in pairs if (s, t) != (CLIENTS, NAMESRV)}
        self.held: dict[object, object] = {}

    async def spoil(self, holder, directions, toxic):
        self.held[holder] = (directions, toxic)

    async def spoil_links(self, holder, links, stream, toxic):
        self.held[holder] = (links, stream, toxic)

    async def refuse(self, holder, directions):
        self.held[holder] = directions

    async def release(self, holder):
        self.held.pop(holder, None)


class FakeDisk:
    """Remembers rules and the clock."""

    def __init__(self) -> None:
        self.held: dict[object, object] = {}
        self.clock = (0.0, 0)

    def hold(self, holder, rules):
        self.held[holder] = rules

    def release(self, holder):
        self.held.pop(holder, None)

    def set_clock(self, offset_s=0.0, drift_ppm=0):
        self.clock = (offset_s, drift_ppm)


class FakeTarget:
    """A cluster that runs, stands still or is down, in files that can be damaged."""

    namesrv = ""
    kind = "fake"
    capabilities = frozenset({"process", "network", "disk", "power", "clock", "membership"})

    def __init__(self, root: Path) -> None:
        self.mesh = FakeMesh()
        self.disks = {node: FakeDisk() for node in MEMBERS}
        self.running = set(MEMBERS)
        self.paused: set[str] = set()
        self.harm: list[str] = []
        self.nodes = [NodeFacts(node, "broker-a", "", "", root / node, ()) for node in MEMBERS]
        for node in self.nodes:
            (node.directory / "commitlog").mkdir(parents=True)
            (node.directory / "commitlog" / f"{0:020d}").write_bytes(bytes(END))
            (node.directory / "commitlog" / "spare").write_bytes(b"")

    def disk(self, node_id):
        return self.disks[node_id]

    async def status(self, node_id):
        if node_id not in self.running - self.paused:
            return None
        role = "leader" if node_id == MEMBERS[0] else "follower"
        return NodeView(node_id, "broker-a", role, 1, True, durable_position=END, voters=MEMBERS)

    async def start_node(self, node_id):
        self.running.add(node_id)

    async def stop_node(self, node_id):
        self.harm.append(f"stop {node_id}")
        self.running.discard(node_id)

    async def kill(self, node_ids):
        self.harm.append(f"kill {node_ids}")
        self.running -= set(node_ids)

    def pause(self, node_id):
        self.harm.append(f"pause {node_id}")
        self.paused.add(node_id)

    def resume(self, node_id):
        self.paused.discard(node_id)

    async def lose_power(self, node_id, kept_share, seed):
        assert node_id not in self.running
        return ""

    async def transfer_leadership(self, node_id):
        self.harm.append(f"lead {node_id}")

    async def remove_member(self, node_id):
        self.harm.append(f"remove {node_id}")

    async def wipe(self, node_id):
        assert node_id not in self.running
        self.harm.append(f"wipe {node_id}")

    def bytes(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for n in self.nodes for path in n.directory.rglob("*") if path.is_file()}

    def state(self) -> object:
        held = [bool(self.mesh.held), *(bool(disk.held) or disk.clock != (0.0, 0) for disk in self.disks.values())]
        return (sorted(self.running), sorted(self.paused), held)


def drawn(name: str, seed: int):
    return KINDS[name].draw(Surroundings(random.Random(seed), MEMBERS, MEMBERS[0]))


@pytest.mark.parametrize("name", KINDS)
async def test_a_fault_harms_the_nodes_it_names_and_is_healed_without_a_trace(name, tmp_path):
    for seed in SEEDS:
        target = FakeTarget(tmp_path / str(seed))
        before, files = target.state(), target.bytes()
        fault = drawn(name, seed)
        assert set(fault.nodes) <= set(MEMBERS)
        assert fault.nodes
        await fault.inject(target)
        assert target.state() != before or target.harm or target.bytes() != files
        await fault.heal(target)
        assert target.state() == before


@pytest.mark.parametrize("name", KINDS)
def test_a_fault_is_a_value_that_can_be_written_down(name):
    fault = drawn(name, 1)
    assert fault == drawn(name, 1)
    assert hash(fault) == hash(drawn(name, 1))
    assert json.loads(msgspec.json.encode(as_json(fault)))["nodes"] == list(fault.nodes)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.alone])
def test_what_damages_a_disk_damages_one_node(name):
    if name != "rolling-restart":
        assert {len(drawn(name, seed).nodes) for seed in SEEDS} == {1}


def test_faults_are_drawn_while_nobody_leads():
    for kind in KINDS.values():
        kind.draw(Surroundings(random.Random(1), MEMBERS, None))


def test_a_schedule_depends_on_its_seed_alone_and_has_every_kind_in_every_round():
    kinds = list(KINDS.values())

    def first(seed: int, count: int = 3 * len(kinds)):
        steps = schedule(seed, kinds, 60.0)
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
    with pytest.raises(ChaosError, match="cannot take 'power'"):
        kinds_named(["power"], frozenset({"network"}))
