"""Nemesis: draws faults, their times and durations from one seed, injects and heals them, and records both.

The schedule depends only on the seed, the kinds, the duration and the pace. The nodes of a fault are drawn when it
strikes, from a seed of its own: they may depend on the leader at that time.

Faults overlap, up to a number at a time. A kind that is `alone` waits until all other faults are healed and the cluster
has converged. No other fault begins until it is healed and the cluster has converged again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dledger_base.room import FULL

from .convergence import leader_of, members_of, wait_converged
from .disk.control import Rule
from .errors import ChaosError
from .faults import Fault, FaultKind, Surroundings, as_json
from .faults.composed import Composed
from .faults.disk import DiskRules
from .history import Recorder
from .pace import MAX_OVERLAP, Pace
from .target import Target
from .toxiproxy.mesh import NAMESRV, PROXY_NAMES

STOPPING_S: Final = 5.0
"""Maximum time in seconds that a node takes to stop after a disk error."""


@dataclass(frozen=True, slots=True)
class Step:
    """A planned fault: `pause_s` after it may begin, a fault of `kind` is in force for `hold_s`; `seed` draws it."""

    pause_s: float
    kind: FaultKind
    hold_s: float
    seed: int


def schedule(seed: int, kinds: Sequence[FaultKind], duration_s: float, pace: Pace) -> Iterator[Step]:
    """Yield the steps of a run. No fault is in force for longer than a sixth of the run, or than the pace allows.

    All kinds come once in each round, in a random order, so that even a short run has many different faults.
    """
    rng = random.Random(seed)
    longest_s = min(duration_s / 6, pace.longest_hold_s)
    while kinds:
        for kind in rng.sample(kinds, len(kinds)):
            low, high = kind.hold_s
            # Long holds are rarer than short holds.
            hold_s = min(low + (high - low) * rng.random() ** 3, longest_s)
            yield Step(rng.uniform(*pace.pause_s), kind, hold_s, rng.getrandbits(64))


@dataclass(slots=True)
class _DiskTrouble:
    """A disk fault that allows nodes to stop by themselves, from `since_s` to `until_s` of the event loop's clock.

    It `fails` if calls return another error than a full disk. A full disk may stop a node only during its start.
    """

    nodes: tuple[str, ...]
    fails: bool
    since_s: float
    until_s: float = math.inf


class Nemesis:
    """Runs a schedule against a target.  `injected` counts faults by kind."""

    def __init__(
        self, target: Target, recorder: Recorder, steps: Iterator[Step], *, max_overlap: int = MAX_OVERLAP
    ) -> None:
        self.injected: dict[str, int] = {}
        self._target = target
        self._recorder = recorder
        self._steps = steps
        self._fault_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults_in_force: set[Fault] = set()
        self._disk_troubles: list[_DiskTrouble] = []
        self._slots = asyncio.Semaphore(max_overlap)

    def may_end(self, node_id: str, served_s: float) -> bool:
        """Return True if a node may end by itself because of a disk fault, up to `STOPPING_S` after its end.

        The node has served since `served_s` by the event loop's clock, infinity if it is still starting.
        """
        now = asyncio.get_running_loop().time()
        return any(
            node_id in trouble.nodes and now < trouble.until_s and (trouble.fails or served_s >= trouble.since_s)
            for trouble in self._disk_troubles
        )

    async def run(self, duration_s: float) -> None:
        """Let faults strike for `duration_s`, then wait until every fault that has begun is healed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_s
        for step in self._steps:
            async with self._slots:
                pass  # another fault may begin now, and no other task takes the slot
            if loop.time() + step.pause_s >= end:
                break  # no fault strikes in the remaining time
            await asyncio.sleep(step.pause_s)
            if step.kind.alone:
                await self._strike_alone(step)
            else:
                await self._slots.acquire()
                task = loop.create_task(self._strike(step))
                self._tasks.add(task)
                task.add_done_callback(self._end_task)
        await asyncio.sleep(max(end - loop.time(), 0.0))
        await self._wait_until_quiet()

    async def heal_all(self) -> None:
        """Heal all nodes and links of every possible fault, also if a fault's own healing failed."""
        await self._wait_until_quiet()
        await self._target.mesh.release_all()
        for node in self._target.nodes:
            if not self._target.capabilities.isdisjoint({"disk", "clock"}):
                self._target.disk(node.node_id).release_all()
            self._target.resume(node.node_id)
        names = [node.node_id for node in self._target.nodes]
        names += self._name_servers if "namesrv" in self._target.capabilities else ()
        names += self._proxies
        for proxy in self._proxies:
            self._target.resume(proxy)
        await asyncio.gather(*map(self._target.start_node, names))

    @property
    def _name_servers(self) -> tuple[str, ...]:
        return tuple(name for name in self._target.others if name not in PROXY_NAMES) or (NAMESRV,)

    @property
    def _proxies(self) -> tuple[str, ...]:
        return tuple(name for name in self._target.others if name in PROXY_NAMES)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            self._recorder.event("note", f"the nemesis failed: {task.exception()!r}", trouble=True)

    async def _wait_until_quiet(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _strike_alone(self, step: Step) -> None:
        await self._wait_until_quiet()
        if await self._wait_until_whole():
            await self._strike(step)
            await self._wait_until_whole()

    async def _wait_until_whole(self) -> bool:
        """Start all nodes, because one may have stopped just when its fault was healed; wait until they have converged.

        Return False if they do not converge.
        """
        try:
            await asyncio.gather(*(self._target.start_node(node.node_id) for node in self._target.nodes))
            await wait_converged(self._target)
        except ChaosError as error:
            self._recorder.event("note", f"not converged: {error}", trouble=True)
            return False
        return True

    async def _strike(self, step: Step) -> None:
        rng = random.Random(step.seed)
        members = rng.choice(list(members_of(self._target).values()))
        leader = await leader_of(self._target, members)
        struck = frozenset(name for value in self._faults_in_force for name in value.nodes)
        leader_id = leader.node_id if leader is not None else None
        fault = step.kind.draw(Surroundings(rng, members, leader_id, self._name_servers, struck, self._proxies))
        if fault in self._faults_in_force:
            return  # an equal fault is in force already; healing one would heal both
        self._fault_count += 1
        number = self._fault_count
        self._faults_in_force.add(fault)
        fields: dict[str, Any] = {
            "id": number,
            "class": step.kind.family,
            "nodes": fault.nodes,
            "fault": as_json(fault),
        }
        self._recorder.event("fault-begin", step.kind.name, **fields)
        injected = False
        trouble = self._begin_trouble(fault)
        try:
            with self._record_refusals(step.kind, "not injected"):
                await fault.inject(self._target)
                injected = True
                self.injected[step.kind.name] = self.injected.get(step.kind.name, 0) + 1
                await asyncio.sleep(step.hold_s)
        finally:
            with self._record_refusals(step.kind, "not healed", nodes=fault.nodes):
                await fault.heal(self._target)
            if trouble is not None:
                trouble.until_s = asyncio.get_running_loop().time() + STOPPING_S
            self._faults_in_force.discard(fault)
            self._recorder.event("fault-end", step.kind.name, id=number, injected=injected)

    def _begin_trouble(self, fault: Fault) -> _DiskTrouble | None:
        errors = {error for rule in _iter_rules(fault) if (error := rule.refusal)}
        if not errors:
            return None
        trouble = _DiskTrouble(fault.nodes, not errors.issubset(FULL), asyncio.get_running_loop().time())
        self._disk_troubles.append(trouble)
        return trouble

    @contextlib.contextmanager
    def _record_refusals(self, kind: FaultKind, outcome: str, nodes: tuple[str, ...] = ()) -> Iterator[None]:
        """Record a refused fault or healing and continue the run: a damaged cluster may refuse both.

        A refused healing is trouble, unless a disk error of a node in `nodes` explains it.
        """
        try:
            yield
        except (ChaosError, OSError) as error:
            explained = not nodes or any(self.may_end(node_id, math.inf) for node_id in nodes)
            self._recorder.event("note", f"{kind.name} {outcome}: {error}", trouble=not explained)


def _iter_rules(fault: Fault) -> Iterator[Rule]:
    """Yield the disk rules of a fault and of its parts."""
    if isinstance(fault, DiskRules):
        yield from fault.rules
    elif isinstance(fault, Composed):
        for act in fault.acts:
            yield from _iter_rules(act.fault)
