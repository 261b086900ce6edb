"""Modes of a group that most seeds of `plan` lack: few voters, permanent learners, acknowledgements before the sync.

Seeds that are stored with their kinds of faults keep their meaning. Seeds of `modes` draw from more kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple

from dledger_sim.log.group import GroupSettings
from dledger_sim.log.kinds import (
    CLASSES,
    DRAWS,
    HANG_KINDS,
    KINDS,
    LOG_SECTOR_KINDS,
    MODE_KINDS,
    RARE,
    RECORD_SECTOR_KINDS,
    ROT_KINDS,
    VIEW_KINDS,
    Draw,
)
from dledger_sim.log.plan import Plan, draw_plan

MANY = frozenset(("crash-many", "kill-many", "pause-many"))
"""Kinds that strike at least two nodes."""
LATE = ("usurped",)
"""Kinds that were added later. They are drawn last, so that seeds keep the rest of their plan."""
ROTTING = frozenset(("bit-flip", "bit-flip-running", "lose-segment", "old-copy"))
"""Kinds that excuse a node while it is the same member."""
SHRINKING = frozenset(("remove", "reshape"))
"""Kinds that leave few voters: a voter with a rotten mark may then be needed for the majority."""
FLIPS = 60.0
FLIPS_S = 0.05
"""Weight of the flips of records. `FLIPS_S` is the mean time between two faults then, in seconds.

Most flips find a group that is not whole, and do nothing. So the other kinds are about as frequent as elsewhere.
"""
FEW_FILES = (24, 32)
"""Maximum numbers of files that a process may have open. A log needs about twenty, at any length."""
LOSING = ("crash", "crash-all", "stop")
"""Kinds that show losses where acknowledgements do not wait for the disk."""


USUAL_SHARE = 0.5
THREADS_SHARE = 0.1
"""Share of the seeds that use threads, among those that draw from everything."""


class Shape(NamedTuple):
    """Members of a group: all nodes, its founders, and its permanent learners."""

    nodes: int
    founders: int
    learners: int


SHAPES: tuple[tuple[Shape, int], ...] = (
    (Shape(1, 1, 0), 2),
    (Shape(2, 1, 1), 2),
    (Shape(2, 2, 0), 4),
    (Shape(2, 1, 0), 2),
    (Shape(3, 2, 1), 2),
    (Shape(3, 3, 0), 6),
    (Shape(3, 1, 0), 2),
    (Shape(4, 4, 0), 1),
    (Shape(5, 3, 1), 1),
)
"""Shapes of groups, each with its weight."""


def draw_mode_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw a seed's mode and its faults. `kinds` are the kinds to draw from, by default all."""
    shape = random.choices([shape for shape, _ in SHAPES], [weight for _, weight in SHAPES])[0]
    group = GroupSettings(
        shape.nodes,
        shape.founders,
        shape.learners,
        random.choice(("sync", "async")),
        snapshot_interval_ms=random.choice((0, 100, 300)),
        recent_bytes=random.choice((4 << 10, 48 << 10, 1 << 20)),
        sizes_window=random.choice((4, 64, 4096)),
        max_uncommitted_bytes=random.choice((16 << 10, 64 << 10, 1 << 20)),
        call_cost_s=random.choice((0.0, 0.0, 0.0, 0.0005)),
        clock_drift=random.choice((0.0, 0.01, 0.05)),
    )
    usual = [
        kind
        for kind in sorted({**KINDS, **MODE_KINDS} if kinds is None else kinds)
        if shape.nodes > 1 or kind not in MANY
    ]
    usual = [kind for kind in usual if kind not in LATE]
    chosen = random.sample(usual, min(len(usual), random.randint(2, 8)))
    if kinds is None:
        more = (*(kind for kind in MODE_KINDS if kind not in LATE), *(LOSING if group.flush == "async" else ()))
        chosen += [kind for kind in more if kind not in chosen and random.random() < 0.5]
    plan = Plan(
        group,
        {kind: random.uniform(0.2, 1.0) * RARE.get(kind, 1.0) for kind in chosen},
        interval_s=random.choice((0.15, 0.4, 1.0)),
        most_at_once=random.choice((1, 2, 4)),
        trim_s=random.choice((0.1, 0.3, 1.0)),
        sync_s=random.choice((0.0003, 0.002, 0.01, 0.06)),
    )
    if kinds is None and shape.nodes - shape.learners > 2:
        plan.kinds.update((kind, random.uniform(0.2, 1.0)) for kind in LATE if random.random() < 0.5)
    return plan


def draw_thread_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw a seed's mode in which blocking work is interrupted at its disk calls."""
    plan = draw_mode_plan(random, kinds)
    return replace(plan, group=replace(plan.group, switch_share=random.choice((0.1, 0.4, 0.9))))


def draw_lossless_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw a mode, half of them with threads, in which no acknowledged entry may be lost.

    Where acknowledgements do not wait for the disk, no host goes down and no sync fails. An operator would have to
    accept the losses of such a group, and only the log's own clients know which of their entries were lost.
    """
    plan = draw_mode_plan(random, kinds)
    losing = {"accept-loss"}
    if plan.group.flush == "async":
        losing |= {"disk-error", *(kind for kind in DRAWS if CLASSES[kind] == "power")}
    left = {kind: weight for kind, weight in plan.kinds.items() if kind not in losing}
    group = replace(plan.group, switch_share=random.choice((0.0, 0.0, 0.1, 0.4)))
    return replace(plan, group=group, kinds=left or {"kill": 1.0})


def with_rot(plan: Plan, kinds: Collection[str] = tuple(ROT_KINDS)) -> Plan:
    """Return the plan with small files that rot again and again, no other rot, and no removed voters.

    `kinds` are the kinds of the rot.
    """
    left = {kind: weight for kind, weight in plan.kinds.items() if kind not in ROTTING | SHRINKING}
    return replace(plan, kinds=left | dict.fromkeys(kinds, FLIPS), interval_s=FLIPS_S)


def with_rotten_views(plan: Plan) -> Plan:
    """Return the plan with views that rot again and again on all nodes. A node mends its views without the others."""
    return replace(plan, kinds=plan.kinds | dict.fromkeys(VIEW_KINDS, FLIPS), interval_s=FLIPS_S)


def draw_rot_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw the usual group or a mode, with rot (see `with_rot`)."""
    return with_rot((draw_plan if random.random() < USUAL_SHARE else draw_mode_plan)(random, kinds))


def draw_sector_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw the usual group or a mode, with bad sectors: in small files for half of the seeds, else in the log."""
    bad: Mapping[str, Draw] = RECORD_SECTOR_KINDS if random.random() < USUAL_SHARE else LOG_SECTOR_KINDS
    return with_rot((draw_plan if random.random() < USUAL_SHARE else draw_mode_plan)(random, kinds), tuple(bad))


def draw_hang_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw the usual group or a mode, some with threads, with disks that hang and a low limit for open files."""
    plan = (draw_plan if random.random() < USUAL_SHARE else draw_mode_plan)(random, kinds)
    group = replace(
        plan.group,
        switch_share=random.choice((0.0, 0.0, 0.4)),
        max_open_segments=random.choice((None, 1, 3)),
        max_files=random.choice((None, *FEW_FILES)),
    )
    return replace(plan, group=group, kinds=plan.kinds | dict.fromkeys(HANG_KINDS, 2.0))


def draw_any_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw one of all plans: half of the seeds have the usual group, the others a mode, some of these with threads.

    A seed with `kinds`, and a seed of the first half, means what it meant before there were modes.
    """
    coin = Random()
    coin.setstate(random.getstate())
    drawn = coin.random()
    if kinds is not None or drawn < USUAL_SHARE:
        return draw_plan(random, kinds)
    return draw_thread_plan(random) if drawn >= 1 - THREADS_SHARE else draw_mode_plan(random)
