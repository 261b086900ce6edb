"""Breadth-first search, level by level, so that the first counter-example is a shortest one.

The worlds are divided among shards by their hashes. Each shard remembers the worlds that it has seen, with their
parents. Shards may be processes. Worlds travel between them by contents: each node's state, envelope and history once.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from dledger_sim.log.explore.bounds import Bounds
from dledger_sim.log.explore.prefixes import Script
from dledger_sim.log.explore.state import Envelope, NodeState, check_the_core_is_known
from dledger_sim.log.explore.tables import History
from dledger_sim.log.explore.world import BrokenWorld, World, Worlds

ROOT = -1
"""Parent of the first world."""

Batch = tuple[
    list[tuple[int, NodeState]], list[tuple[int, Envelope]], list[tuple[int, History]], list[tuple[int, int, World]]
]
"""Definitions that the receiver lacks, then (hash, parent's hash, world)."""


class Level(NamedTuple):
    """Result of expanding a level. `broken_at` is the hash of a world whose next step breaks a promise."""

    batches: list[bytes]
    transitions: int
    broken_at: int | None = None


class Progress(NamedTuple):
    """Progress of a search."""

    depth: int
    states: int
    frontier: int
    transitions: int
    seconds: float


class Found(NamedTuple):
    """Result of a search. `trail` leads to a broken promise: hashes of worlds, without the first world."""

    progress: Progress
    complete: bool
    core_steps: int
    trail: list[int] | None = None


class Shard:
    """Shard: the worlds whose hash leaves `number` when divided by `shards`."""

    def __init__(self, bounds: Bounds, prefix: str, number: int, shards: int) -> None:
        self._worlds = Worlds(bounds)
        self._number = number
        self._run_shards = shards
        self._parents: dict[int, int] = {}
        self._frontier: list[tuple[int, World]] = []
        self._next: list[tuple[int, World]] = []
        self._sent_values: list[tuple[set[int], set[int], set[int]]] = [(set(), set(), set()) for _ in range(shards)]
        self._received_values: list[tuple[dict[int, int], dict[int, int], dict[int, int]]] = [
            ({}, {}, {}) for _ in range(shards)
        ]
        first = Script.played(self._worlds, prefix).world
        found = self._worlds.canonical_hash(first)
        if found % shards == number:
            self._parents[found] = ROOT
            self._frontier.append((found, first))

    def expand(self, deadline: float) -> Level:
        """Take every step from every world of the frontier, until `deadline` (of the monotonic clock)."""
        worlds, shards, number = self._worlds, self._run_shards, self._number
        parents, following, canonical_hash = self._parents, self._next, self._worlds.canonical_hash
        batches: list[Batch] = [([], [], [], []) for _ in range(shards)]
        transitions = 0
        broken_at = None
        for parent, world in self._frontier:
            try:
                for _, successor in worlds.successors(world):
                    transitions += 1
                    found = canonical_hash(successor)
                    owner = found % shards
                    if owner != number:
                        self._add_to_batch(batches[owner], owner, found, parent, successor)
                    elif found not in parents:
                        parents[found] = parent
                        following.append((found, successor))
            except BrokenWorld:
                broken_at = parent
                break
            if time.monotonic() > deadline:
                break
        return Level([pickle.dumps(batch) for batch in batches], transitions, broken_at)

    def _add_to_batch(self, batch: Batch, owner: int, found: int, parent: int, world: World) -> None:
        nodes, envelopes, histories = self._sent_values[owner]
        tables = self._worlds.tables
        for node in world.nodes:
            if node not in nodes:
                nodes.add(node)
                batch[0].append((node, tables.nodes.values[node]))
        for envelope in world.envelopes:
            if envelope not in envelopes:
                envelopes.add(envelope)
                batch[1].append((envelope, tables.envelopes.values[envelope]))
        if world.history not in histories:
            histories.add(world.history)
            batch[2].append((world.history, tables.histories.values[world.history]))
        batch[3].append((found, parent, world))

    def accept(self, batches: list[bytes]) -> int:
        """Add the worlds that other shards found, in the order of the shards' numbers.

        Return the size of the next frontier.
        """
        tables, parents = self._worlds.tables, self._parents
        for sender, data in enumerate(batches):
            batch: Batch = pickle.loads(data)  # noqa: S301 - data of this program, from its own child
            nodes, envelopes, histories = self._received_values[sender]
            nodes.update((number, tables.nodes.of(state)) for number, state in batch[0])
            envelopes.update((number, tables.envelopes.of(envelope)) for number, envelope in batch[1])
            histories.update((number, tables.histories.of(history)) for number, history in batch[2])
            for found, parent, world in batch[3]:
                if found not in parents:
                    parents[found] = parent
                    here = World(
                        tuple(nodes[node] for node in world.nodes),
                        tuple(sorted(envelopes[envelope] for envelope in world.envelopes)),
                        histories[world.history],
                        world.budgets,
                    )
                    self._next.append((found, here))
        self._frontier, self._next = self._next, []
        return len(self._frontier)

    def parent(self, found: int) -> int | None:
        """Return the first parent of a world: None if the world is another shard's, `ROOT` for the first world."""
        return self._parents.get(found)

    def counts(self) -> tuple[int, int]:
        """Return the number of distinct worlds, and the number of steps that the real core has taken."""
        return len(self._parents), self._worlds.tables.steps


class _ShardCaller(Protocol):
    def begin(self, method: str, *arguments: object) -> None: ...
    def result(self) -> object: ...


class _LocalShard:
    """Shard in this process."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._result: object = None

    def begin(self, method: str, *arguments: object) -> None:
        self._result = getattr(self._shard, method)(*arguments)

    def result(self) -> object:
        return self._result


class _RemoteShard:
    """Shard in its own process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, method: str, *arguments: object) -> None:
        self._connection.send((method, arguments))

    def result(self) -> object:
        result = self._connection.recv()
        if isinstance(result, BaseException):
            raise result
        return result


def _serve(connection: Connection, make: Callable[[], Shard]) -> None:
    shard = make()
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(getattr(shard, method)(*arguments))
        except Exception as error:
            connection.send(error)
            return


@contextmanager
def _run_shards(bounds: Bounds, prefix: str, jobs: int) -> Iterator[list[_ShardCaller]]:
    if jobs == 1:
        yield [_LocalShard(Shard(bounds, prefix, 0, 1))]
        return
    # Fork, so that a known bug that is switched on is on in every shard.
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        callers: list[_ShardCaller] = []
        for number in range(jobs):
            ours, theirs = context.Pipe()
            make = _ShardMaker(bounds, prefix, number, jobs)
            process = context.Process(target=_serve, args=(theirs, make), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.terminate)
            callers.append(_RemoteShard(ours))
        yield callers


class _ShardMaker(NamedTuple):
    bounds: Bounds
    prefix: str
    number: int
    shards: int

    def __call__(self) -> Shard:
        return Shard(*self)


def _ask(shards: list[_ShardCaller], method: str, *arguments: object) -> list[object]:
    for shard in shards:
        shard.begin(method, *arguments)
    return [shard.result() for shard in shards]


def search(
    bounds: Bounds,
    *,
    prefix: str = "",
    jobs: int = 1,
    most_states: int | None = None,
    seconds: float = float("inf"),
    report: Callable[[Progress], None] = lambda _: None,
) -> Found:
    """Explore until no new world is found, a promise is broken, or `most_states` or `seconds` are reached."""
    check_the_core_is_known()
    began = time.monotonic()
    depth = transitions = 0
    with _run_shards(bounds, prefix, jobs) as shards:
        while True:
            levels = [level for level in _ask(shards, "expand", began + seconds) if isinstance(level, Level)]
            transitions += sum(level.transitions for level in levels)
            broken_at = next((level.broken_at for level in levels if level.broken_at is not None), None)
            for number, shard in enumerate(shards):
                shard.begin("accept", [level.batches[number] for level in levels])
            frontier = sum(size for shard in shards if isinstance(size := shard.result(), int))
            depth += 1
            counts = [count for count in _ask(shards, "counts") if isinstance(count, tuple)]
            states = sum(count[0] for count in counts)
            spent = time.monotonic() - began
            progress = Progress(depth, states, frontier, transitions, spent)
            report(progress)
            core_steps = sum(count[1] for count in counts)
            if broken_at is not None:
                return Found(progress, complete=False, core_steps=core_steps, trail=_trail(shards, broken_at))
            if spent > seconds or (most_states is not None and states >= most_states and frontier):
                return Found(progress, complete=False, core_steps=core_steps)
            if not frontier:
                return Found(progress, complete=True, core_steps=core_steps)


def _trail(shards: list[_ShardCaller], last: int) -> list[int]:
    trail: list[int] = []
    while True:
        parent = next(found for found in _ask(shards, "parent", last) if isinstance(found, int))
        if parent == ROOT:
            return trail[::-1]
        trail.append(last)
        last = parent
