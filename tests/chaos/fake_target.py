"""Fake cluster of a few sets, for faults and the nemesis, which see a cluster only as a target."""

from __future__ import annotations

import os
import random
from pathlib import Path

from dledger_chaos.faults import KINDS, Surroundings
from dledger_chaos.target import NodeFacts, NodeView
from dledger_chaos.toxiproxy.mesh import CLIENTS, NAMESRV, PROXY_NAMES, Link

MEMBERS = ("broker-a-n0", "broker-a-n1", "broker-a-n2")
END = 4096
DERIVED = ("consumequeue/t/0/0", "keyindex/1", "timeindex.sqlite", "snapshots/1")


def drawn(name: str, seed: int):
    """Return the fault of a kind that a seed draws."""
    return KINDS[name].draw(Surroundings(random.Random(seed), MEMBERS, MEMBERS[0]))


class FakeMesh:
    """Mesh that records the faults on each link."""

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

    async def release_all(self):
        self.held.clear()


class FakeDisk:
    """Disk that records rules and the clock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.held: dict[object, object] = {}
        self.clock = (0.0, 0)

    def hold(self, holder, rules):
        self.held[holder] = rules

    def release(self, holder):
        self.held.pop(holder, None)

    def release_all(self):
        self.held.clear()
        self.clock = (0.0, 0)

    def set_clock(self, offset_s=0.0, drift_ppm=0):
        self.clock = (offset_s, drift_ppm)


class FakeTarget:
    """Cluster of nodes that run, stand still or are down, with files that can be damaged."""

    namesrv = ""
    kind = "fake"
    others = ()
    other_logs = ()
    capabilities = frozenset({"process", "network", "disk", "power", "clock", "membership"})

    def __init__(self, root: Path) -> None:
        self.mesh = FakeMesh()
        self.disks = {node: FakeDisk(root / "disks" / node) for node in MEMBERS}
        self.running = {*MEMBERS, NAMESRV, *PROXY_NAMES}
        self.paused: set[str] = set()
        self.harm: list[str] = []
        self.nodes = [NodeFacts(node, "broker-a", "", "", root / node, ()) for node in MEMBERS]
        for node in self.nodes:
            (node.directory / "commitlog").mkdir(parents=True)
            (node.directory / "commitlog" / f"{0:020d}").write_bytes(bytes(END))
            (node.directory / "commitlog" / "spare").write_bytes(b"")
            for name in DERIVED:
                (node.directory / name).parent.mkdir(parents=True, exist_ok=True)
                (node.directory / name).write_bytes(bytes(range(1, 200)) + bytes(100))

    def pid(self, node_id):
        return os.getpid() if node_id in self.running else None

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

    def slow_down(self, node_id, run_s, stand_s):
        self.harm.append(f"slow {node_id}")
        self.paused.add(node_id)

    def resume(self, node_id):
        self.paused.discard(node_id)

    async def found_again(self, node_id):
        assert node_id not in self.running
        self.harm.append(f"found {node_id}")
        self.running.add(node_id)

    async def lose_power(self, node_ids, kept_share, seed):
        await self.kill(node_ids)

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
