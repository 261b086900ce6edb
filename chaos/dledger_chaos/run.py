"""One run, from the first process to the verdict. `chaos/README.md` describes its phases and its files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from dledger_base.logs import LogFormatter
from dledger_base.room import look_for_room

from .checkers.base import RUN_FILE, NodeFiles, Result, RunData, RunInfo, Verdict
from .checkers.judge import judge, overall
from .checkers.standing import BOUND_S
from .convergence import wait_converged
from .errors import ChaosError
from .faults import kinds_named
from .history import Recorder, write_edn
from .nemesis import Nemesis, schedule
from .observation import Observer
from .pace import Pace
from .report import write_report
from .targets import TARGETS, make_target
from .toxiproxy.build import VERSION as TOXIPROXY_VERSION
from .toxiproxy.mesh import CLIENTS, PROXY_NAMES
from .workloads.base import RETENTION, NodeAddresses, Workload, WorkloadContext
from .workloads.registry import WORKLOADS

QUIET_S: Final = 3.0
"""Minimum time in seconds for which workloads run before the first fault."""
STEADY_S: Final = BOUND_S + 4.0
"""Time in seconds for which workloads run after healing. In this time, stalled groups get no new members."""
QUIET_SHARE: Final = 0.1
"""Time for which workloads run before the first fault, as a share of the time of the faults."""
MAX_QUIET_S: Final = 20.0
"""Maximum time in seconds before the first fault, long enough to judge the promises for an undisturbed group."""

STOP_WORKLOADS_S: Final = 60.0
FINAL_READS_S: Final = 300.0
BROKEN_READS_S: Final = 30.0
"""Time limit in seconds for the final reads if the cluster has not converged."""

BASE_BYTES: Final = 1 << 30
BYTES_PER_SECOND: Final = 2 << 20
"""Approximate disk space of a run per second: data and logs of the processes, and the history."""

EDN_FILE: Final = "history.edn"
LOG_FILE: Final = "clients.log"
"""Log of the workloads' clients, which run in this process."""
CLUSTER_DIRECTORY: Final = "cluster"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run.  `directory` is made for the run; `command` is the line that repeats it."""

    directory: Path
    command: str
    target: str
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    workloads: tuple[str, ...]
    engine: str | None = None
    """Engine of our cluster's nodes."""
    mutant: str | None = None
    keep_data: bool = False
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True, slots=True)
class RunResult:
    """End of a run."""

    verdict: Result
    verdicts: Sequence[Verdict]
    report: Path
    injected: dict[str, int]
    """Faults by kind."""


async def run(options: RunOptions, say: Callable[[str], None]) -> RunResult:
    """Run once; `say` takes lines for people.  Raises `ChaosError` if it cannot even begin."""
    _stop_on_signals()
    _check_room(options, say)
    trial = _Trial(options, say)
    options.directory.mkdir(parents=True, exist_ok=True)
    with _log_to_file(options.directory / LOG_FILE):
        await trial.run()
    say("checking")
    result = await asyncio.to_thread(check, options.directory)
    if not options.keep_data and result.verdict == "valid":
        shutil.rmtree(options.directory / CLUSTER_DIRECTORY)
    return RunResult(result.verdict, result.verdicts, result.report, trial.injected)


def _check_room(options: RunOptions, say: Callable[[str], None]) -> None:
    """Say if the disk is above the watermark. Raises `ChaosError` if the run's data would not fit.

    A full disk is a fault of its own, and must not occur without its injection.
    """
    needed = BASE_BYTES + int(options.duration_s * BYTES_PER_SECOND)
    room = look_for_room(options.directory, needed, f"a run of {options.duration_s / 60:.1f} minutes")
    if room.lack is not None:
        raise ChaosError(room.lack)
    if room.warning is not None:
        say(f"warning: {room.warning}")


def check(directory: Path) -> RunResult:
    """Judge a finished run and write its report; blocks."""
    data = RunData.load(directory)
    verdicts = judge(data)
    write_edn(data.operations, directory / EDN_FILE)
    return RunResult(overall(verdicts), verdicts, write_report(data, verdicts), {})


def workloads_named(names: Sequence[str], capabilities: frozenset[str]) -> list[str]:
    """Return the workloads that `names` name. `all` stands for all workloads that the target and this machine can run.

    Raises `ChaosError` for an unknown name, or a workload that cannot be run.
    """
    possible = {}
    for entry in WORKLOADS.values():
        obstacle = entry.unavailable()
        if entry.target not in capabilities or not entry.needs <= capabilities:
            obstacle = f"the target lacks {', '.join(sorted({entry.target, *entry.needs} - capabilities))}"
        possible[entry.name] = obstacle
    if "all" in names:
        return [name for name, obstacle in possible.items() if not obstacle]
    for name in names:
        if name not in possible:
            raise ChaosError(f"there is no workload {name!r}: `dledger chaos workloads` lists them")
        if possible[name]:
            raise ChaosError(f"workload {name} cannot run: {possible[name]}")
    return list(dict.fromkeys(names))


def _stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP cancel this task, as Ctrl-C does, so that no process outlives the run."""
    task = asyncio.current_task()
    if task is None:
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@contextlib.contextmanager
def _log_to_file(path: Path) -> Iterator[None]:
    """Write log records to a file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(LogFormatter("text", "chaos"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _note_failure(recorder: Recorder, task: asyncio.Task[None]) -> None:
    """Record as trouble that a background task ended by itself: it no longer watches the nodes."""
    if not task.cancelled():
        recorder.event("note", f"the {task.get_name()} failed: {task.exception()!r}", trouble=True)


@contextlib.asynccontextmanager
async def watching(observer: Observer, recorder: Recorder) -> AsyncIterator[None]:
    """Watch the nodes inside this context, which ends before the target: a sample makes the target open connections."""
    task = asyncio.create_task(observer.run(), name="observer")
    task.add_done_callback(partial(_note_failure, recorder))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


class _Trial:
    """The part of a run during which processes live."""

    def __init__(self, options: RunOptions, say: Callable[[str], None]) -> None:
        self.injected: dict[str, int] = {}
        self._options = options
        self._say = say
        capabilities = TARGETS[options.target].capabilities
        self._kinds = kinds_named(options.faults, capabilities) if options.faults else []
        entries = [WORKLOADS[name] for name in workloads_named(options.workloads, capabilities)]
        # A workload that trims the log finishes last: the final reads of others may wait for its trims.
        entries.sort(key=lambda entry: RETENTION in entry.needs)
        self._workloads: list[Workload] = [entry.make() for entry in entries]
        self._target = make_target(
            options.target,
            options.directory / CLUSTER_DIRECTORY,
            seed=options.seed,
            config="".join(entry.config for entry in entries),
            engine=options.engine,
            mutant=options.mutant,
        )
        self._started_at = datetime.now(UTC).astimezone()
        self._begin_ns = self._heal_ns = time.monotonic_ns()
        self._final_reads_s = BROKEN_READS_S

    async def run(self) -> None:
        with Recorder(self._options.directory) as recorder:
            nemesis = Nemesis(
                self._target,
                recorder,
                schedule(self._options.seed, self._kinds, self._options.duration_s, self._options.pace),
                max_overlap=self._options.pace.max_overlap,
            )
            observer = Observer(self._target, recorder, nemesis.may_end)
            try:
                self._say(f"starting a cluster ({self._target.kind})")
                async with self._target:
                    await self._run_on_cluster(recorder, nemesis, observer)
                    nodes = [
                        NodeFiles(node.node_id, node.group, str(node.directory), [str(path) for path in node.log_files])
                        for node in self._target.nodes
                    ]
            finally:
                self.injected = nemesis.injected
            recorder.event("phase", "stopped")
        self._write_info(nodes)

    async def _run_on_cluster(self, recorder: Recorder, nemesis: Nemesis, observer: Observer) -> None:
        contexts = [self._make_context(recorder, workload) for workload in self._workloads]
        pairs = list(zip(self._workloads, contexts, strict=True))
        for workload, ctx in pairs:
            await workload.setup(ctx)
        self._begin_ns = time.monotonic_ns()
        async with watching(observer, recorder):
            await self._run_workloads(recorder, nemesis, pairs)
            recorder.event("phase", "final-reads")
            for number, (workload, ctx) in enumerate(pairs, 1):
                self._say(f"final reads of {workload.name}, {number} of {len(pairs)}")
                with self._record_errors(recorder, f"final reads of {workload.name} failed"):
                    async with asyncio.timeout(self._final_reads_s):
                        await workload.finish(ctx)
            if self._final_reads_s == FINAL_READS_S:
                with self._record_errors(recorder, "the cluster did not stay whole"):
                    await wait_converged(self._target)
        await observer.sample(usage=True)

    async def _run_workloads(
        self, recorder: Recorder, nemesis: Nemesis, pairs: Sequence[tuple[Workload, WorkloadContext]]
    ) -> None:
        recorder.event("phase", "workloads")
        working = [asyncio.create_task(workload.run(ctx), name=workload.name) for workload, ctx in pairs]
        try:
            await asyncio.sleep(max(QUIET_S, min(MAX_QUIET_S, self._options.duration_s * QUIET_SHARE)))
            self._say(f"injecting faults for {self._options.duration_s:.0f} s")
            await nemesis.run(self._options.duration_s)
            if await self._heal(recorder, nemesis):
                for _, ctx in pairs:
                    ctx.healed.set()
                await asyncio.sleep(STEADY_S)
        finally:
            for _, ctx in pairs:
                ctx.stopping.set()
            await self._end_workloads(recorder, working)

    async def _heal(self, recorder: Recorder, nemesis: Nemesis) -> bool:
        """Heal all faults. Return True if the cluster has converged then."""
        self._say("healing")
        with self._record_errors(recorder, "the cluster was not healed"):
            await nemesis.heal_all()
        self._heal_ns = time.monotonic_ns()
        recorder.event("phase", "heal")
        with self._record_errors(recorder, "the cluster has not converged"):
            await wait_converged(self._target)
            recorder.event("phase", "converged")
            self._final_reads_s = FINAL_READS_S
        return self._final_reads_s == FINAL_READS_S

    async def _end_workloads(self, recorder: Recorder, working: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the workloads to stop. Cancel workloads that do not stop, and record failed ones as trouble."""
        _, late = await asyncio.wait(working, timeout=STOP_WORKLOADS_S)
        for task in late:
            task.cancel()
        for task, outcome in zip(working, await asyncio.gather(*working, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                recorder.event("note", f"workload {task.get_name()} failed: {outcome!r}", trouble=True)

    @contextlib.contextmanager
    def _record_errors(self, recorder: Recorder, what: str) -> Iterator[None]:
        """Record errors for the checkers, and continue the run."""
        try:
            yield
        except Exception as error:
            recorder.event("note", f"{what}: {error!r}", trouble=True)
            self._say(f"{what}: {error}")

    def _make_context(self, recorder: Recorder, workload: Workload) -> WorkloadContext:
        directory = self._options.directory / "workloads" / workload.name
        directory.mkdir(parents=True, exist_ok=True)
        return WorkloadContext(
            self._target.namesrv,
            [NodeAddresses(n.node_id, n.group, n.client_address, n.http_address) for n in self._target.nodes],
            random.Random(f"{self._options.seed} {workload.name}"),
            recorder,
            asyncio.Event(),
            self._target.capabilities,
            directory,
            proxies=[self._target.mesh.address(CLIENTS, name) for name in self._target.others if name in PROXY_NAMES],
        )

    def _write_info(self, nodes: list[NodeFiles]) -> None:
        info = RunInfo(
            seed=self._options.seed,
            command=self._options.command,
            target=self._target.kind,
            workloads=[workload.name for workload in self._workloads],
            faults=[kind.name for kind in self._kinds],
            started_at=self._started_at.isoformat(timespec="seconds"),
            begin_ns=self._begin_ns,
            heal_ns=self._heal_ns,
            end_ns=time.monotonic_ns(),
            nodes=nodes,
            other_logs=[str(path) for path in self._target.other_logs],
            versions={
                "dledger-mq": version("dledger-mq"),
                "toxiproxy": TOXIPROXY_VERSION,
                "Python": platform.python_version(),
                platform.system(): platform.release(),
            },
        )
        (self._options.directory / RUN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(info)))
