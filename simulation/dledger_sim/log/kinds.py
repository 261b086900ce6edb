"""Kinds of faults: how each is drawn from a seed, and which class it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from dledger.store.segments import DIRECTORY as LOG_DIRECTORY
from dledger_sim.log.faults import (
    AcceptLoss,
    BitFlip,
    Change,
    ClientCut,
    ClockDrift,
    ClockJump,
    Crash,
    Cut,
    Deposed,
    DiskError,
    Drain,
    Fault,
    FlipRecord,
    FullDisk,
    Kill,
    LongPause,
    LoseFiles,
    LoseSegment,
    OldCopy,
    Partition,
    Pause,
    PowerCut,
    Reinstall,
    Remove,
    Reshape,
    RollingRestart,
    SlowClose,
    SlowDisk,
    SlowLinks,
    Throttle,
    Transfer,
    Usurped,
    Wipe,
)
from dledger_sim.log.group import KEEPS, SimGroup

TRIM = "trim"
LONGEST_PAUSE_S = 60.0
SCRUBBED_S = 3.0
"""After which a node has looked through its small files, or has not."""
SPARE_BYTES = (0, 8 << 10, 100 << 10, 300 << 10)
"""What is left on a disk that is full."""
RECORDS = (
    "identity.json",
    "identity.copy.json",
    "raft/boot",
    "raft/commit",
    "raft/hardstate",
    "raft/mark",
    "snapshots",
    "views",
)
"""Small files, and directories of such; a log alone has no views."""
VIEWS = ("consumequeue", "views", "keyindex")
"""Directories of services: errors there end nobody."""

RARE: Mapping[str, float] = {"long-pause": 0.1, "rolling-restart": 0.3}
"""These keep a group busy for long: their weights are so much smaller."""

Draw = Callable[[Random, SimGroup], Fault]


def _names(random: Random, group: SimGroup) -> list[str]:
    names = list(group.settings.names)
    random.shuffle(names)
    return names


def _one(random: Random, group: SimGroup) -> str:
    """Any node, but the leader more often than not."""
    leader = group.leader
    if leader is not None and random.random() < 0.5:
        return leader.name
    return random.choice(group.settings.names)


def _down(random: Random) -> float:
    return random.choice((0.05, 0.3, 1.0, 3.0)) * random.uniform(0.5, 1.5)


def _crash_one(random: Random, group: SimGroup) -> Fault:
    return Crash((_one(random, group),), random.choice(KEEPS), _down(random))


def _crash_many(random: Random, group: SimGroup) -> Fault:
    names = _names(random, group)
    return Crash(tuple(names[: random.randint(2, len(names))]), random.choice(KEEPS), _down(random))


def _some(random: Random, group: SimGroup) -> tuple[str, ...]:
    names = _names(random, group)
    return tuple(names[: random.randint(2, len(names))])


def _crash_all(random: Random, group: SimGroup) -> Fault:
    return Crash(group.settings.names, random.choice(KEEPS), random.uniform(0.05, 0.5))


def _between(some: list[str], others: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in some for b in others] + [(b, a) for a in some for b in others]


def _isolate(random: Random, group: SimGroup) -> Fault:
    name = _one(random, group)
    others = [other for other in group.settings.names if other != name]
    return Partition(tuple(_between([name], others)), _down(random))


def _halves(random: Random, group: SimGroup) -> Fault:
    names = _names(random, group)
    middle = len(names) // 2
    return Partition(tuple(_between(names[:middle], names[middle:])), _down(random))


def _ring(random: Random, group: SimGroup) -> Fault:
    """Everybody hears only the next one, or (three nodes) two of them do not hear each other."""
    names = _names(random, group)
    if len(names) == 3:
        return Partition(tuple(_between(names[:1], names[1:2])), _down(random))
    near = {(names[at], names[at - 1]) for at in range(len(names))}
    pairs = [(a, b) for a in names for b in names if a != b and (a, b) not in near and (b, a) not in near]
    return Partition(tuple(pairs), _down(random))


def _one_way(random: Random, group: SimGroup) -> Fault:
    name = _one(random, group)
    others = [other for other in group.settings.names if other != name]
    if random.random() < 0.5:
        return Partition(tuple((name, other) for other in others), _down(random))
    return Partition(tuple((other, name) for other in others), _down(random))


def _some_pairs(random: Random, group: SimGroup) -> tuple[tuple[str, str], ...]:
    names = group.settings.names
    pairs = [(a, b) for a in names for b in names if a != b and random.random() < 0.5]
    return tuple(pairs)


def _full_disk(random: Random, group: SimGroup) -> Fault:
    duration_s = _down(random)
    cut_off_s = random.choice((0.0, 0.0, 0.5)) * duration_s
    return FullDisk((_one(random, group),), random.choice(SPARE_BYTES), duration_s, cut_off_s)


def _drain(random: Random, group: SimGroup) -> Fault:
    drain_s = random.choice((0.2, 1.0, 3.0))
    return Drain(_one(random, group), drain_s, drain_s + _down(random))


def _deposed(random: Random, group: SimGroup) -> Fault:
    pause_s = random.uniform(1.5, 5.0)
    return Deposed(_one(random, group), pause_s, pause_s + random.uniform(0.1, 3.0))


KINDS: Mapping[str, Draw] = {
    "crash": _crash_one,
    "crash-many": _crash_many,
    "crash-all": _crash_all,
    "kill": lambda random, group: Kill((_one(random, group),), _down(random)),
    "kill-many": lambda random, group: Kill(_some(random, group), _down(random)),
    "stop": lambda random, group: Kill((_one(random, group),), _down(random), orderly=True),
    "rolling-restart": lambda random, group: RollingRestart(
        tuple(_names(random, group)), random.choice((0.05, 0.5)), random.uniform(5, 15)
    ),
    "drain": _drain,
    "power-cut": lambda random, group: PowerCut(
        _one(random, group),
        random.randrange(random.choice((5, 40, 200))),
        random.random() < 0.5,
        random.uniform(0.5, 2),
    ),
    "pause": lambda random, group: Pause((_one(random, group),), _down(random)),
    "pause-many": lambda random, group: Pause(_some(random, group), random.uniform(1, 10)),
    "long-pause": lambda random, group: LongPause(_one(random, group), random.uniform(5, LONGEST_PAUSE_S)),
    "isolate": _isolate,
    "halves": _halves,
    "ring": _ring,
    "one-way": _one_way,
    "cut": lambda random, group: Cut(_some_pairs(random, group)),
    "client-cut": lambda random, group: ClientCut(
        tuple(_names(random, group)[: random.randint(1, len(group.settings.names))]), _down(random)
    ),
    "slow-links": lambda random, group: SlowLinks(
        _some_pairs(random, group), random.choice((0.01, 0.1, 0.4)), _down(random)
    ),
    "throttle": lambda random, group: Throttle(
        _some_pairs(random, group), random.choice((0, 5_000, 20_000, 100_000)), _down(random)
    ),
    "slow-close": lambda random, group: SlowClose(
        _some_pairs(random, group), random.choice((0.2, 1.0, 3.0)), _down(random)
    ),
    "deposed": _deposed,
    "slow-disk": lambda random, group: SlowDisk(
        _one(random, group), random.choice((0.02, 0.2, 1.0, 2.5)), 0.001, _down(random)
    ),
    "full-disk": _full_disk,
    "full-disks": lambda random, group: FullDisk(group.settings.names, random.choice(SPARE_BYTES), _down(random)),
    "disk-error": lambda random, group: DiskError(
        _one(random, group),
        random.choice(("datasync", "datasync", "pwrite")),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "raft/hardstate", "raft/mark", "index", "snapshots", *VIEWS)),
        _down(random),
    ),
    "bit-flip": lambda random, group: BitFlip(
        _one(random, group),
        random.random(),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "index", "snapshots", "raft/mark", "raft/hardstate")),
        random.uniform(0.1, 1.0),
    ),
    "bit-flip-running": lambda random, group: BitFlip(
        _one(random, group), random.random(), LOG_DIRECTORY, 0.0, running=True
    ),
    "lose-segment": lambda random, group: LoseSegment(
        _one(random, group), random.random(), random.random() < 0.5, random.uniform(0.1, 1.0)
    ),
    "old-copy": lambda random, group: OldCopy(_one(random, group), random.uniform(0.5, 3.0)),
    "wipe": lambda random, group: Wipe(_one(random, group), random.uniform(0.1, 1.0)),
    "lose-files": lambda random, group: LoseFiles(_one(random, group), random.uniform(0.1, 1.0)),
    "clock-jump": lambda random, group: ClockJump(
        _one(random, group), random.choice((-1, 1)) * random.choice((50, 5_000, 86_400_000)), _down(random)
    ),
    "clock-drift": lambda random, group: ClockDrift(_one(random, group), random.uniform(-0.2, 0.2), _down(random)),
    "remove": lambda random, group: Remove(_one(random, group)),
    "transfer": lambda random, group: Transfer(_one(random, group)),
}


def _usurped(random: Random, group: SimGroup) -> Fault:
    leader, cut_off_s = group.leader, random.uniform(0.8, 2.0)
    node = random.choice(group.settings.names) if leader is None else leader.name
    return Usurped(node, random.uniform(0.5, 2.5), 0.001, cut_off_s, cut_off_s + random.uniform(0.3, 2.0))


def _reshape(random: Random, group: SimGroup) -> Fault:
    """Some changes one behind the other, or at the same time, each asked of whoever takes itself for the leader."""
    at, steps = 0.0, []
    for _ in range(random.randint(2, 6)):
        steps.append(Change(at, random.choice(group.settings.names), random.choice(("remove", "demote", "promote"))))
        at += random.choice((0.0, 0.0, 0.005, 0.05, 0.3))
    cut_off = _one(random, group) if random.random() < 0.3 else None
    return Reshape(tuple(steps), cut_off, at + random.uniform(0.1, 2.0))


MODE_KINDS: Mapping[str, Draw] = {
    "reshape": _reshape,
    "reinstall": lambda random, group: Reinstall(_one(random, group)),
    "usurped": _usurped,
    "accept-loss": lambda random, group: AcceptLoss(_one(random, group)),
    "torn-write": lambda random, group: DiskError(
        _one(random, group),
        "pwrite",
        random.choice((LOG_DIRECTORY, "raft/hardstate", "raft/mark", "raft/mark", "index", "snapshots")),
        _down(random),
        torn=True,
    ),
}
"""Kinds that only the modes' seeds draw from: those of older scenarios keep their meaning."""


def _flip_record(random: Random, group: SimGroup) -> Fault:
    running = random.random() < 0.5
    seconds = random.uniform(0.1, SCRUBBED_S if running else 1.0)
    found = running and random.random() < 0.5
    return FlipRecord(_one(random, group), random.random(), random.choice(RECORDS), seconds, running, found)


ROT_KINDS: Mapping[str, Draw] = {"flip-record": _flip_record}
"""Kinds that only the seeds of rot draw from."""

DRAWS: Mapping[str, Draw] = {**KINDS, **MODE_KINDS, **ROT_KINDS}


CLASSES: Mapping[str, str] = {
    **dict.fromkeys(
        ("kill", "kill-many", "stop", "drain", "rolling-restart", "pause", "pause-many", "long-pause"), "process"
    ),
    **dict.fromkeys(("crash", "crash-many", "crash-all", "power-cut"), "power"),
    **dict.fromkeys(
        (
            "isolate",
            "halves",
            "ring",
            "one-way",
            "cut",
            "client-cut",
            "slow-links",
            "throttle",
            "slow-close",
            "deposed",
        ),
        "network",
    ),
    **dict.fromkeys(
        (
            "slow-disk",
            "full-disk",
            "full-disks",
            "disk-error",
            "bit-flip",
            "bit-flip-running",
            "lose-segment",
            "old-copy",
            "wipe",
            "lose-files",
            "torn-write",
            "accept-loss",
            "usurped",
            *ROT_KINDS,
        ),
        "disk",
    ),
    "clock-jump": "clock",
    "clock-drift": "clock",
    **dict.fromkeys(("remove", "transfer", "reshape", "reinstall"), "membership"),
    TRIM: "retention",
}
"""Which class a kind of fault belongs to."""
