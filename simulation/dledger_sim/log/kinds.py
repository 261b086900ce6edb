"""Kinds of faults: how each is drawn from a seed, and its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from dledger.environment import BACKGROUND, COLD, FLUSH, HARD_STATE, URGENT
from dledger.store.segments import DIRECTORY as LOG_DIRECTORY
from dledger.testing.inodes import Keep
from dledger_sim.log.faults import (
    AcceptLoss,
    BadSector,
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
    HangingCall,
    HangingDisk,
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
    RotView,
    SlowClose,
    SlowDisk,
    SlowLinks,
    Throttle,
    Transfer,
    Usurped,
    Wipe,
)
from dledger_sim.log.faults.views import ROWS, HowViewsRot
from dledger_sim.log.group import SimGroup

TRIM = "trim"
KEEPS: tuple[Keep, ...] = ("none", "random", "all")
"""Ways in which a power loss treats bytes that were not synced."""
LONGEST_PAUSE_S = 60.0
SCRUBBED_S = 3.0
"""Maximum duration of a flip in a running node's small files, in seconds.

A scrub may or may not read them in this time.
"""
SPARE_BYTES = (0, 8 << 10, 100 << 10, 300 << 10)
"""Sizes of the space that is left on a full disk, in bytes."""
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
"""Small files, and directories of small files. A log alone has no views."""
VIEWS = ("consumequeue", "views", "keyindex")
"""Directories of services: errors there end no node."""

RARE: Mapping[str, float] = {"long-pause": 0.1, "rolling-restart": 0.3}
"""Factors for the weights of kinds that keep a group busy for long."""

Draw = Callable[[Random, SimGroup], Fault]


def _shuffle_names(random: Random, group: SimGroup) -> list[str]:
    names = list(group.settings.names)
    random.shuffle(names)
    return names


def _draw_node(random: Random, group: SimGroup) -> str:
    """Return any node. In at least half of the cases it is the leader, if one exists."""
    leader = group.leader
    if leader is not None and random.random() < 0.5:
        return leader.name
    return random.choice(group.settings.names)


def _draw_down_s(random: Random) -> float:
    return random.choice((0.05, 0.3, 1.0, 3.0)) * random.uniform(0.5, 1.5)


def _crash_one(random: Random, group: SimGroup) -> Fault:
    return Crash((_draw_node(random, group),), random.choice(KEEPS), _draw_down_s(random))


def _crash_many(random: Random, group: SimGroup) -> Fault:
    names = _shuffle_names(random, group)
    return Crash(tuple(names[: random.randint(2, len(names))]), random.choice(KEEPS), _draw_down_s(random))


def _draw_nodes(random: Random, group: SimGroup) -> tuple[str, ...]:
    names = _shuffle_names(random, group)
    return tuple(names[: random.randint(2, len(names))])


def _crash_all(random: Random, group: SimGroup) -> Fault:
    return Crash(group.settings.names, random.choice(KEEPS), random.uniform(0.05, 0.5))


def _pair_up(some: list[str], others: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in some for b in others] + [(b, a) for a in some for b in others]


def _isolate(random: Random, group: SimGroup) -> Fault:
    name = _draw_node(random, group)
    others = [other for other in group.settings.names if other != name]
    return Partition(tuple(_pair_up([name], others)), _draw_down_s(random))


def _halves(random: Random, group: SimGroup) -> Fault:
    names = _shuffle_names(random, group)
    middle = len(names) // 2
    return Partition(tuple(_pair_up(names[:middle], names[middle:])), _draw_down_s(random))


def _ring(random: Random, group: SimGroup) -> Fault:
    """Let each node hear its two neighbours only. With three nodes, cut the link between two of them."""
    names = _shuffle_names(random, group)
    if len(names) == 3:
        return Partition(tuple(_pair_up(names[:1], names[1:2])), _draw_down_s(random))
    near = {(names[at], names[at - 1]) for at in range(len(names))}
    pairs = [(a, b) for a in names for b in names if a != b and (a, b) not in near and (b, a) not in near]
    return Partition(tuple(pairs), _draw_down_s(random))


def _one_way(random: Random, group: SimGroup) -> Fault:
    name = _draw_node(random, group)
    others = [other for other in group.settings.names if other != name]
    if random.random() < 0.5:
        return Partition(tuple((name, other) for other in others), _draw_down_s(random))
    return Partition(tuple((other, name) for other in others), _draw_down_s(random))


def _some_pairs(random: Random, group: SimGroup) -> tuple[tuple[str, str], ...]:
    names = group.settings.names
    pairs = [(a, b) for a in names for b in names if a != b and random.random() < 0.5]
    return tuple(pairs)


def _full_disk(random: Random, group: SimGroup) -> Fault:
    duration_s = _draw_down_s(random)
    cut_off_s = random.choice((0.0, 0.0, 0.5)) * duration_s
    return FullDisk((_draw_node(random, group),), random.choice(SPARE_BYTES), duration_s, cut_off_s)


def _drain(random: Random, group: SimGroup) -> Fault:
    drain_s = random.choice((0.2, 1.0, 3.0))
    return Drain(_draw_node(random, group), drain_s, drain_s + _draw_down_s(random))


def _deposed(random: Random, group: SimGroup) -> Fault:
    pause_s = random.uniform(1.5, 5.0)
    return Deposed(_draw_node(random, group), pause_s, pause_s + random.uniform(0.1, 3.0))


KINDS: Mapping[str, Draw] = {
    "crash": _crash_one,
    "crash-many": _crash_many,
    "crash-all": _crash_all,
    "kill": lambda random, group: Kill((_draw_node(random, group),), _draw_down_s(random)),
    "kill-many": lambda random, group: Kill(_draw_nodes(random, group), _draw_down_s(random)),
    "stop": lambda random, group: Kill((_draw_node(random, group),), _draw_down_s(random), orderly=True),
    "rolling-restart": lambda random, group: RollingRestart(
        tuple(_shuffle_names(random, group)), random.choice((0.05, 0.5)), random.uniform(5, 15)
    ),
    "drain": _drain,
    "power-cut": lambda random, group: PowerCut(
        _draw_node(random, group),
        random.randrange(random.choice((5, 40, 200))),
        random.random() < 0.5,
        random.uniform(0.5, 2),
    ),
    "pause": lambda random, group: Pause((_draw_node(random, group),), _draw_down_s(random)),
    "pause-many": lambda random, group: Pause(_draw_nodes(random, group), random.uniform(1, 10)),
    "long-pause": lambda random, group: LongPause(_draw_node(random, group), random.uniform(5, LONGEST_PAUSE_S)),
    "isolate": _isolate,
    "halves": _halves,
    "ring": _ring,
    "one-way": _one_way,
    "cut": lambda random, group: Cut(_some_pairs(random, group)),
    "client-cut": lambda random, group: ClientCut(
        tuple(_shuffle_names(random, group)[: random.randint(1, len(group.settings.names))]), _draw_down_s(random)
    ),
    "slow-links": lambda random, group: SlowLinks(
        _some_pairs(random, group), random.choice((0.01, 0.1, 0.4)), _draw_down_s(random)
    ),
    "throttle": lambda random, group: Throttle(
        _some_pairs(random, group), random.choice((0, 5_000, 20_000, 100_000)), _draw_down_s(random)
    ),
    "slow-close": lambda random, group: SlowClose(
        _some_pairs(random, group), random.choice((0.2, 1.0, 3.0)), _draw_down_s(random)
    ),
    "deposed": _deposed,
    "slow-disk": lambda random, group: SlowDisk(
        _draw_node(random, group), random.choice((0.02, 0.2, 1.0, 2.5)), 0.001, _draw_down_s(random)
    ),
    "full-disk": _full_disk,
    "full-disks": lambda random, group: FullDisk(
        group.settings.names, random.choice(SPARE_BYTES), _draw_down_s(random)
    ),
    "disk-error": lambda random, group: DiskError(
        _draw_node(random, group),
        random.choice(("datasync", "datasync", "pwrite")),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "raft/hardstate", "raft/mark", "index", "snapshots", *VIEWS)),
        _draw_down_s(random),
    ),
    "bit-flip": lambda random, group: BitFlip(
        _draw_node(random, group),
        random.random(),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "index", "snapshots", "raft/mark", "raft/hardstate")),
        random.uniform(0.1, 1.0),
    ),
    "bit-flip-running": lambda random, group: BitFlip(
        _draw_node(random, group), random.random(), LOG_DIRECTORY, 0.0, running=True
    ),
    "lose-segment": lambda random, group: LoseSegment(
        _draw_node(random, group), random.random(), random.random() < 0.5, random.uniform(0.1, 1.0)
    ),
    "old-copy": lambda random, group: OldCopy(_draw_node(random, group), random.uniform(0.5, 3.0)),
    "wipe": lambda random, group: Wipe(_draw_node(random, group), random.uniform(0.1, 1.0)),
    "lose-files": lambda random, group: LoseFiles(_draw_node(random, group), random.uniform(0.1, 1.0)),
    "clock-jump": lambda random, group: ClockJump(
        _draw_node(random, group), random.choice((-1, 1)) * random.choice((50, 5_000, 86_400_000)), _draw_down_s(random)
    ),
    "clock-drift": lambda random, group: ClockDrift(
        _draw_node(random, group), random.uniform(-0.2, 0.2), _draw_down_s(random)
    ),
    "remove": lambda random, group: Remove(_draw_node(random, group)),
    "transfer": lambda random, group: Transfer(_draw_node(random, group)),
}


def _usurped(random: Random, group: SimGroup) -> Fault:
    leader, cut_off_s = group.leader, random.uniform(0.8, 2.0)
    node = random.choice(group.settings.names) if leader is None else leader.name
    return Usurped(node, random.uniform(0.5, 2.5), 0.001, cut_off_s, cut_off_s + random.uniform(0.3, 2.0))


def _reshape(random: Random, group: SimGroup) -> Fault:
    """Draw several membership changes, one after another or at once.

    Each is asked of a node that believes it leads.
    """
    at, steps = 0.0, []
    for _ in range(random.randint(2, 6)):
        steps.append(Change(at, random.choice(group.settings.names), random.choice(("remove", "demote", "promote"))))
        at += random.choice((0.0, 0.0, 0.005, 0.05, 0.3))
    cut_off = _draw_node(random, group) if random.random() < 0.3 else None
    return Reshape(tuple(steps), cut_off, at + random.uniform(0.1, 2.0))


MODE_KINDS: Mapping[str, Draw] = {
    "reshape": _reshape,
    "reinstall": lambda random, group: Reinstall(_draw_node(random, group)),
    "usurped": _usurped,
    "accept-loss": lambda random, group: AcceptLoss(_draw_node(random, group)),
    "torn-write": lambda random, group: DiskError(
        _draw_node(random, group),
        "pwrite",
        random.choice((LOG_DIRECTORY, "raft/hardstate", "raft/mark", "raft/mark", "index", "snapshots")),
        _draw_down_s(random),
        torn=True,
    ),
}
"""Kinds for the seeds of modes only. Seeds of older scenarios keep their meaning."""


def _flip_record(random: Random, group: SimGroup) -> Fault:
    running = random.random() < 0.5
    seconds = random.uniform(0.1, SCRUBBED_S if running else 1.0)
    found = running and random.random() < 0.5
    return FlipRecord(_draw_node(random, group), random.random(), random.choice(RECORDS), seconds, running, found)


ROT_KINDS: Mapping[str, Draw] = {"flip-record": _flip_record}
"""Kinds for the seeds of rot only."""


HOW_VIEWS_ROT: tuple[HowViewsRot, ...] = ("bit", "bit", "sector", "lost", "unreadable")


def _rot_view(random: Random, group: SimGroup) -> Fault:
    path = random.choice(("consumequeue", "consumequeue", "keyindex", ROWS))
    how = random.choice(HOW_VIEWS_ROT)
    return RotView(_draw_node(random, group), random.random(), path, how, random.uniform(0.1, 1.0))


VIEW_KINDS: Mapping[str, Draw] = {"rot-view": _rot_view}
"""Kinds for the seeds of rotten views only."""


def _bad_record(random: Random, group: SimGroup) -> Fault:
    running = random.random() < 0.5
    seconds = random.uniform(0.1, SCRUBBED_S if running else 1.0)
    found = running and random.random() < 0.5
    path = random.choice([path for path in RECORDS if path != "views"])
    return FlipRecord(_draw_node(random, group), random.random(), path, seconds, running, found, unreadable=True)


RECORD_SECTOR_KINDS: Mapping[str, Draw] = {"bad-record": _bad_record}
LOG_SECTOR_KINDS: Mapping[str, Draw] = {
    "bad-sector": lambda random, group: BadSector(
        _draw_node(random, group),
        random.random(),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "index")),
        random.uniform(0.1, 1.0),
    ),
    "bad-sector-running": lambda random, group: BadSector(
        _draw_node(random, group), random.random(), LOG_DIRECTORY, 0.0, running=True
    ),
}
"""Kinds for the seeds of bad sectors only: `RECORD_SECTOR_KINDS` for small files, `LOG_SECTOR_KINDS` for the log."""

HUNG_LANES = (
    (FLUSH, HARD_STATE, URGENT, BACKGROUND, COLD),
    (FLUSH,),
    (HARD_STATE,),
    (URGENT,),
    (BACKGROUND,),
    (COLD,),
)
HUNG_CALLS = (
    "open",
    "pread",
    "pwrite",
    "datasync",
    "reserve",
    "truncate",
    "rename",
    "unlink",
    "mkdir",
    "sync_dir",
    "listdir",
)
HUNG_PATHS = ("", "", LOG_DIRECTORY, "raft/mark", "raft/hardstate", "snapshots", *VIEWS)

HANG_KINDS: Mapping[str, Draw] = {
    "hanging-disk": lambda random, group: HangingDisk(
        _draw_node(random, group), random.choice(HUNG_LANES), random.uniform(1.0, 8.0)
    ),
    "hanging-call": lambda random, group: HangingCall(
        _draw_node(random, group), random.choice(HUNG_CALLS), random.choice(HUNG_PATHS), random.uniform(1.0, 8.0)
    ),
}
"""Kinds for the seeds of hanging disks only."""

DRAWS: Mapping[str, Draw] = {
    **KINDS,
    **MODE_KINDS,
    **ROT_KINDS,
    **VIEW_KINDS,
    **RECORD_SECTOR_KINDS,
    **LOG_SECTOR_KINDS,
    **HANG_KINDS,
}


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
            *VIEW_KINDS,
            *RECORD_SECTOR_KINDS,
            *LOG_SECTOR_KINDS,
            *HANG_KINDS,
        ),
        "disk",
    ),
    "clock-jump": "clock",
    "clock-drift": "clock",
    **dict.fromkeys(("remove", "transfer", "reshape", "reinstall"), "membership"),
    TRIM: "retention",
}
"""Class of each kind of fault."""
