"""Client process: an event loop, its connections, and the programs that run on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from random import Random
from typing import Final, ParamSpec, TypeVar

from dledger_client.cluster.surroundings import Surroundings, Workers, use
from dledger_remoting.hosts import HostAddress
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.library.loop import ClientLoop
from dledger_sim.brokers.library.names import PORT, NameConnection, NameDesk
from dledger_sim.brokers.library.overheard import Overheard
from dledger_sim.brokers.library.stream import StreamConnection
from dledger_sim.brokers.library.wires import FASTEST_S, SPREAD_S, ClientEnd, Peer, SimTransport
from dledger_sim.brokers.service import HOST, node_at
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.environment import WALL_EPOCH_MS
from dledger_sim.log.group import SimGroup
from dledger_sim.log.violation import Violation

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")

NAME_SERVER: Final = f"{HOST}:{PORT}"
FIRST_PORT: Final = 40_000
CONNECT_AGAIN_S: Final = 0.1
"""Interval at which a connection to an unreachable node is tried, in seconds."""
MOST_QUESTIONS: Final = 5000
"""Maximum number of requests and connections of a process per second. Its programs need fewer."""
NEVER: Final = float("-inf")
"""Request time of a lock that a process does not have."""
KNOWS_ALL_RESETS: Final = 1 << 62
"""Number of a reset that is newer than all others: `judge` checks by deliveries on which resets a commit rests."""


class World:
    """Data that all client processes of a seed share."""

    def __init__(self, group: SimGroup, truth: Truth, random: Random, groups: dict[str, tuple[str, ...]]) -> None:
        self.group = group
        self.groups = groups
        """Topics to which each consumer group subscribes."""
        self.healed_at = 0.0
        """Simulated time at which all faults were over, in seconds."""
        self.truth = truth
        self.random = random
        self.desk = NameDesk(group)
        self.ports = count(FIRST_PORT)
        self.commit_watchers: list[Callable[[str, OffsetKey, float], None]] = []
        """Callbacks for every commit that a process writes, with the time at which it asked for its lock (or `NEVER`).
        """
        self._loops: list[ClientLoop] = []
        self.broken: Violation | None = None
        """First promise that was found broken inside a client. Raising there would end only a task."""

        group.on_over.append(self._bury)

    def add(self, loop: ClientLoop) -> None:
        """Remember a process's loop until the end of the run."""
        self._loops.append(loop)

    def _bury(self) -> None:
        for loop in self._loops:
            loop.bury()

    def breach(self, promise: str, **facts: object) -> None:
        """Note a broken promise. The present turn ends first."""
        if self.broken is None:
            self.broken = Violation(promise, ", ".join(f"{name}={value}" for name, value in facts.items()))

    def raise_broken(self) -> None:
        """End the run if a promise was broken."""
        if self.broken is not None:
            raise self.broken


class Process:
    """Process that runs coroutines on its own loop, until it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self._random = Random(f"{world.random.random()} {name}")
        self.loop = ClientLoop(world.group.scheduler, self._report_error, world.raise_broken)
        self.loop.dial = self._dial
        world.add(self.loop)
        self._peers: list[Peer] = []
        self._cut_off_until = 0.0
        self._lock_request_times: dict[OffsetKey, float] = {}
        """Request time of each lock that was granted and not given up since."""
        self._questions_by_second: Counter[int] = Counter()
        """Number of requests to servers and attempts to connect, by second."""
        self.loop.context.run(use, Surroundings(self._wall_ns, self._random.getrandbits, _no_workers))

    @property
    def is_alive(self) -> bool:
        """True until the process is killed."""
        return self.loop.alive

    def run(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Begin a coroutine in the next turn."""
        self.loop.from_outside(self._begin, work)

    def _begin(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        asyncio.ensure_future(work()).add_done_callback(self._handle_end)

    def _handle_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report_error(error)

    def cut_off(self, until: float) -> None:
        """Cut the process off from all servers until a moment."""
        self._cut_off_until = max(self._cut_off_until, until)

    def is_alone(self) -> bool:
        """Return whether the process is cut off now."""
        return self.world.group.scheduler.now < self._cut_off_until

    def kill(self) -> None:
        """Kill the process (SIGKILL). Its machine closes the connections."""
        self.loop.kill()
        for peer in self._peers:
            peer.leave()

    def _report_error(self, error: BaseException) -> None:
        if isinstance(error, Violation):
            self.world.broken = self.world.broken or error
        else:
            self.world.breach("a client raises no unexpected exception", process=self.name, error=repr(error))

    def _wall_ns(self) -> int:
        return (WALL_EPOCH_MS + int(self.world.group.scheduler.now * 1000)) * 1_000_000

    # ---------------------------------------------------------------- connections

    async def _dial(
        self, make_protocol: Callable[[], asyncio.Protocol], port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        world = self.world
        await asyncio.sleep(FASTEST_S + self._random.random() * SPREAD_S)
        self._count_question()
        if port == PORT:
            return self._connect(make_protocol(), partial(NameConnection, world.group, world.desk, self._random))
        name = node_at(f"{HOST}:{port}")
        while self.is_alone() or name in world.group.unreachable:  # noqa: ASYNC110 - no event reports the end of a cut
            await asyncio.sleep(CONNECT_AGAIN_S)
        life = world.group.nodes[name].life
        if life is None or life.stopping or name in world.group.leaving:
            raise ConnectionRefusedError(111, "Connection refused")
        own_port = next(world.ports)
        return self._connect(
            make_protocol(),
            partial(StreamConnection, world.group, life, self._random, HostAddress(HOST, own_port), own_port),
        )

    def _connect(
        self, protocol: asyncio.Protocol, connect: Callable[[Callable[[bytes | None], None], Callable[[], bool]], Peer]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        end = ClientEnd(self.loop.from_outside, protocol)
        overheard = Overheard(self)

        def deliver(piece: bytes | None) -> None:
            if piece is not None and end.is_open and self.is_alive:
                overheard.hears(piece)
            end.deliver(piece)

        peer = connect(deliver, self.is_alone)
        self._peers.append(peer)
        transport = SimTransport(end, peer, lambda data: overheard.says(data, self._now))
        protocol.connection_made(transport)
        return transport, protocol

    # ---------------------------------------------------------------- events of `Listener`

    def asked(self) -> None:
        """Count a request, and check that there are not too many per second."""
        self._count_question()

    def commits(self, key: OffsetKey, offset: int) -> None:
        """Report a commit to the truth, which accepts only requested commits, and to the watchers."""
        self.world.truth.resets.attempt(key, offset, KNOWS_ALL_RESETS)
        for watcher in self.world.commit_watchers:
            watcher(self.name, key, self._lock_request_times.get(key, NEVER))

    def refused(self, key: OffsetKey) -> None:  # noqa: ARG002 (protocol)
        """Count a refused commit."""
        self.world.truth.happened["commit of a member refused for now"] += 1

    def granted(self, key: OffsetKey, asked_at: float) -> None:
        """Note the time at which a granted lock was requested."""
        self._lock_request_times[key] = asked_at

    def unlocks(self, key: OffsetKey) -> None:
        """Note that a lock was given up."""
        self._lock_request_times.pop(key, None)

    def lock_asked_at(self, key: OffsetKey) -> float:
        """Return the time at which the process asked for a lock that it still has, or `NEVER`."""
        return self._lock_request_times.get(key, NEVER)

    @property
    def _now(self) -> float:
        return self.world.group.scheduler.now

    def _count_question(self) -> None:
        second = int(self._now)
        self._questions_by_second[second] += 1
        if self._questions_by_second[second] > MOST_QUESTIONS:
            self.world.breach(
                "a client pauses before it asks again", process=self.name, asked=self._questions_by_second[second]
            )


def _no_workers(_count: int) -> Workers:
    return _NoWorkers()


class _NoWorkers:
    """Replacement for threads: a simulated client looks up no name, and reads and writes no file."""

    async def run(
        self, function: Callable[Parameters, ResultT], *_args: Parameters.args, **_kwargs: Parameters.kwargs
    ) -> ResultT:
        """Refuse to run a function."""
        raise NotImplementedError(f"{function} would run on a thread, which is not simulated")

    def close(self) -> None:
        """Do nothing: there is no thread to end."""
