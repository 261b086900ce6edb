"""Modes of a group that most seeds of `plan` do not have: few voters, learners that stay, no wait for the disk.

Seeds that are written down with their kinds of faults keep their meaning; those of `modes` draw from some kinds more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import NamedTuple

from dledger_sim.log.group import GroupSettings
from dledger_sim.log.kinds import CLASSES, DRAWS, KINDS, MODE_KINDS, RARE, ROT_KINDS
from dledger_sim.log.plan import Plan, draw_plan

MANY = frozenset(("crash-many", "kill-many", "pause-many"))
"""Kinds that strike two nodes at least."""
LATE = ("usurped",)
"""Kinds that were added later: drawn last, so that seeds keep the rest of their plan."""
ROTTING = frozenset(("bit-flip", "bit-flip-running", "lose-segment", "old-copy"))
"""Kinds that a node is excused for as long as it is the same member."""
SHRINKING = frozenset(("remove", "reshape"))
"""Kinds that leave so few voters that the one whose mark rots may be needed."""
FLIPS = 60.0
FLIPS_S = 0.05
"""Weight of flips of records, and the mean time between two faults then: most find a group that is not whole, and do
nothing; the other kinds are about as frequent as elsewhere.
"""
LOSING = ("crash", "crash-all", "stop")
"""Kinds that show what is lost where acknowledgements do not wait for the disk."""


USUAL_SHARE = 0.5
THREADS_SHARE = 0.1
"""Of the seeds that draw from everything."""


class Shape(NamedTuple):
    """Who is in a group: all nodes, those that found it, and those that stay learners."""

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
"""With how often each is drawn."""


def draw_mode_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """A seed's mode, and its faults; `kinds` are those to draw from, by default all."""
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
    """A seed's mode, in which blocking work is interrupted at its disk calls."""
    plan = draw_mode_plan(random, kinds)
    return replace(plan, group=replace(plan.group, switch_share=random.choice((0.1, 0.4, 0.9))))


def draw_lossless_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """A mode, half of them with threads, in which nothing that was acknowledged may be lost.

    Where acknowledgements do not wait for the disk no host goes down: what the group loses then is for an operator to
    accept, and only the log's own clients know which of their entries that took.
    """
    plan = draw_mode_plan(random, kinds)
    losing = {"accept-loss", *(kind for kind in DRAWS if CLASSES[kind] == "power" and plan.group.flush == "async")}
    left = {kind: weight for kind, weight in plan.kinds.items() if kind not in losing}
    group = replace(plan.group, switch_share=random.choice((0.0, 0.0, 0.1, 0.4)))
    return replace(plan, group=group, kinds=left or {"kill": 1.0})


def with_rot(plan: Plan) -> Plan:
    """The plan with small files that rot again and again, nothing else that does, and no fewer voters."""
    left = {kind: weight for kind, weight in plan.kinds.items() if kind not in ROTTING | SHRINKING}
    return replace(plan, kinds=left | dict.fromkeys(ROT_KINDS, FLIPS), interval_s=FLIPS_S)


def draw_rot_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """The usual group or a mode, with rot: see `with_rot`."""
    return with_rot((draw_plan if random.random() < USUAL_SHARE else draw_mode_plan)(random, kinds))


def draw_any_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """One of all plans: half of the seeds have the usual group, the others a mode, some of these with threads.

    Given `kinds`, and in the first half, a seed means what it meant before there were modes.
    """
    coin = Random()
    coin.setstate(random.getstate())
    drawn = coin.random()
    if kinds is not None or drawn < USUAL_SHARE:
        return draw_plan(random, kinds)
    return draw_thread_plan(random) if drawn >= 1 - THREADS_SHARE else draw_mode_plan(random)
