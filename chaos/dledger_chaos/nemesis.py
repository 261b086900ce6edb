"""Decides from one seed which faults strike when, and for how long; injects them, heals them, and writes both down.

The schedule is drawn in advance and depends on nothing but the seed, the kinds and the duration.  Whom a fault hits is
drawn when it strikes, from randomness of its own, because that may depend on who leads at the moment.

Faults overlap, up to a number at a time.  A kind that wants the cluster to itself waits until everything else is
healed and the cluster has converged, and lets nothing else begin until that is so again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dledger.store.disk import FULL

from .convergence import leader_of, members_of, wait_converged
from .errors import ChaosError
from .faults import Fault, FaultKind, Surroundings, as_json
from .faults.disk import DiskRules
from .history import Recorder
from .pace import MAX_OVERLAP, Pace
from .target import Target
from .toxiproxy.mesh import NAMESRV

STOPPING_S: Final = 5.0
"""A node that meets a disk error may take this long to stop."""


@dataclass(frozen=True, slots=True)
class Step:
    """`pause_s` after there is room for it, a fault of `kind` strikes for `hold_s`; `seed` draws whom and how."""

    pause_s: float
    kind: FaultKind
    hold_s: float
    seed: int


def schedule(seed: int, kinds: Sequence[FaultKind], duration_s: float, pace: Pace) -> Iterator[Step]:
    """Yield the steps of a run.  No fault is held for longer than a sixth of the run, or than the pace allows.

    Kinds come in rounds of a random order each, so that even a short run has many different ones.
    """
    rng = random.Random(seed)
    longest_s = min(duration_s / 6, pace.longest_hold_s)
    while kinds:
        for kind in rng.sample(kinds, len(kinds)):
            low, high = kind.hold_s
            # Long holds are rarer than short ones.
            hold_s = min(low + (high - low) * rng.random() ** 3, longest_s)
            yield Step(rng.uniform(*pace.pause_s), kind, hold_s, rng.getrandbits(64))


@dataclass(slots=True)
class _DiskTrouble:
    """Why nodes may stop by themselves, from `since_s` to `until_s` of the event loop's clock.

    Unless writes or syncs `fail`, the disk is full, which only a node that starts need not bear.
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
        self._serial = 0
        self._active: set[asyncio.Task[None]] = set()
        self._values: set[Fault] = set()
        self._troubles: list[_DiskTrouble] = []
        self._slots = asyncio.Semaphore(max_overlap)

    def may_end(self, node_id: str, served_s: float) -> bool:
        """Whether a fault is in force, or was a moment ago, over which a node that serves since then may end by itself.

        `served_s` is a time of the event loop's clock, infinity for a node that is still starting.
        """
        now = asyncio.get_running_loop().time()
        return any(
            node_id in trouble.nodes and now < trouble.until_s and (trouble.fails or served_s >= trouble.since_s)
            for trouble in self._troubles
        )

    async def run(self, duration_s: float) -> None:
        """Let faults strike for `duration_s`, then wait until every one that has begun is healed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_s
        for step in self._steps:
            async with self._slots:
                pass  # there is room now, and nobody else takes it
            if loop.time() + step.pause_s >= end:
                break  # the rest of the time passes in peace
            await asyncio.sleep(step.pause_s)
            if step.kind.alone:
                await self._alone(step)
            else:
                await self._slots.acquire()
                task = loop.create_task(self._strike(step))
                self._active.add(task)
                task.add_done_callback(self._done)
        await asyncio.sleep(max(end - loop.time(), 0.0))
        await self._quiet()

    async def heal_all(self) -> None:
        """Make everything whole that any fault may have harmed, whatever became of its own healing."""
        await self._quiet()
        await self._target.mesh.release_all()
        for node in self._target.nodes:
            if not self._target.capabilities.isdisjoint({"disk", "clock"}):
                self._target.disk(node.node_id).release_all()
            self._target.resume(node.node_id)
        names = [node.node_id for node in self._target.nodes]
        names += self._name_servers if "namesrv" in self._target.capabilities else ()
        await asyncio.gather(*map(self._target.start_node, names))

    @property
    def _name_servers(self) -> tuple[str, ...]:
        return tuple(self._target.others) or (NAMESRV,)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._active.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None:
            self._recorder.event("note", f"the nemesis failed: {task.exception()!r}", trouble=True)

    async def _quiet(self) -> None:
        while self._active:
            await asyncio.wait(self._active)

    async def _alone(self, step: Step) -> None:
        await self._quiet()
        if await self._whole():
            await self._strike(step)
            await self._whole()

    async def _whole(self) -> bool:
        """Wait until the cluster has converged; a node that stopped just when its fault was healed is started first."""
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
        struck = frozenset(name for value in self._values for name in value.nodes)
        fault = step.kind.draw(
            Surroundings(rng, members, leader.node_id if leader is not None else None, self._name_servers, struck)
        )
        if fault in self._values:
            return  # the same is in force already, and would be healed together with it
        self._serial += 1
        number = self._serial
        self._values.add(fault)
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
            with self._noted(step.kind, "not injected"):
                await fault.inject(self._target)
                injected = True
                self.injected[step.kind.name] = self.injected.get(step.kind.name, 0) + 1
                await asyncio.sleep(step.hold_s)
        finally:
            with self._noted(step.kind, "not healed", whom=fault.nodes):
                await fault.heal(self._target)
            if trouble is not None:
                trouble.until_s = asyncio.get_running_loop().time() + STOPPING_S
            self._values.discard(fault)
            self._recorder.event("fault-end", step.kind.name, id=number, injected=injected)

    def _begin_trouble(self, fault: Fault) -> _DiskTrouble | None:
        errors = {rule.error for rule in fault.rules if rule.error} if isinstance(fault, DiskRules) else set()
        if not errors:
            return None
        trouble = _DiskTrouble(fault.nodes, not errors.issubset(FULL), asyncio.get_running_loop().time())
        self._troubles.append(trouble)
        return trouble

    @contextlib.contextmanager
    def _noted(self, kind: FaultKind, what: str, whom: tuple[str, ...] = ()) -> Iterator[None]:
        """A cluster in pieces may refuse a fault or its healing: that is written down, and no end of the run.

        If nothing was wrong with a disk of those `whom` it should have helped, it is trouble.
        """
        try:
            yield
        except (ChaosError, OSError) as error:
            explained = not whom or any(self.may_end(node_id, math.inf) for node_id in whom)
            self._recorder.event("note", f"{kind.name} {what}: {error}", trouble=not explained)
