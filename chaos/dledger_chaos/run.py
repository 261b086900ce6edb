"""One run, from the first process to the verdict.

1. The cluster starts behind its proxies; workloads set themselves up.
2. Workloads run; the nemesis injects faults; an observer samples every node.
3. Everything is healed, and the cluster has to converge.
4. Workloads stop and read what there is; all processes stop.
5. Checkers judge what was recorded and what lies on the disks; the report is written.

A run leaves a directory: `history.jsonl`, `history.edn`, `events.jsonl`, `run.json`, `report.html`, `report.json`, and
`cluster/` with configuration, data and logs of every process.
"""

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

from dledger.logs import LogFormatter

from .checkers.base import RUN_FILE, NodeFiles, Result, RunData, RunInfo, Verdict
from .checkers.judge import judge, overall
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
from .workloads.base import RETENTION, NodeAddresses, Workload, WorkloadContext
from .workloads.registry import WORKLOADS

QUIET_S: Final = 3.0
"""Workloads run undisturbed for this long after everything is healed, and before the first fault at least."""
QUIET_SHARE: Final = 0.1
"""Before the first fault they run undisturbed for this share of the time of the faults."""
MAX_QUIET_S: Final = 20.0
"""But for no longer: what is promised of a group that nothing disturbs can be judged then."""

STOP_WORKLOADS_S: Final = 60.0
FINAL_READS_S: Final = 300.0
BROKEN_READS_S: Final = 30.0
"""As long as that a workload may try to read from a cluster that has not converged."""

EDN_FILE: Final = "history.edn"
LOG_FILE: Final = "clients.log"
"""What the clients of the workloads complain about: their own process is this one."""
CLUSTER_DIRECTORY: Final = "cluster"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run.  `directory` is made for the run; `command` is the line that repeats it."""

    directory: Path
    command: str
    target: str
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    workloads: tuple[str, ...]
    engine: str | None = None
    """Of our cluster's nodes."""
    mutant: str | None = None
    keep_data: bool = False
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    verdict: Result
    verdicts: Sequence[Verdict]
    report: Path
    injected: dict[str, int]
    """Faults by kind."""


async def run(options: RunOptions, say: Callable[[str], None]) -> RunResult:
    """Run once; `say` takes lines for people.  Raises `ChaosError` if it cannot even begin."""
    _stop_on_signals()
    trial = _Trial(options, say)
    options.directory.mkdir(parents=True, exist_ok=True)
    with _log_file(options.directory / LOG_FILE):
        await trial.run()
    say("checking")
    result = await asyncio.to_thread(check, options.directory)
    if not options.keep_data and result.verdict == "valid":
        shutil.rmtree(options.directory / CLUSTER_DIRECTORY)
    return RunResult(result.verdict, result.verdicts, result.report, trial.injected)


def check(directory: Path) -> RunResult:
    """Judge a finished run and write its report; blocks."""
    data = RunData.load(directory)
    verdicts = judge(data)
    write_edn(data.operations, directory / EDN_FILE)
    return RunResult(overall(verdicts), verdicts, write_report(data, verdicts), {})


def workloads_named(names: Sequence[str], capabilities: frozenset[str]) -> list[str]:
    """Return the workloads that `names` name; `all` are those that the target and this machine can run.

    Raises `ChaosError` for a name that is none, or one that cannot be run.
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
    """Have SIGTERM and a closed terminal cancel this task, as Ctrl-C does: no process outlives the run."""
    task = asyncio.current_task()
    if task is None:
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Have log records written to a file."""
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
    """What ends by itself has left something undone: nodes that nobody watches may end unseen."""
    if not task.cancelled():
        recorder.event("note", f"the {task.get_name()} failed: {task.exception()!r}", trouble=True)


@contextlib.asynccontextmanager
async def watching(observer: Observer, recorder: Recorder) -> AsyncIterator[None]:
    """Have the nodes watched, and by nobody who outlives the cluster: its target would open connections anew."""
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
        # One that trims the log ends last: it goes on until it has taken what the others' last reads wait for.
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
        self._reads_s = BROKEN_READS_S

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
                    await self._with_cluster(recorder, nemesis, observer)
                    nodes = [
                        NodeFiles(node.node_id, node.group, str(node.directory), [str(path) for path in node.log_files])
                        for node in self._target.nodes
                    ]
            finally:
                self.injected = nemesis.injected
            recorder.event("phase", "stopped")
        self._write_info(nodes)

    async def _with_cluster(self, recorder: Recorder, nemesis: Nemesis, observer: Observer) -> None:
        contexts = [self._context(recorder, workload) for workload in self._workloads]
        pairs = list(zip(self._workloads, contexts, strict=True))
        for workload, ctx in pairs:
            await workload.setup(ctx)
        self._begin_ns = time.monotonic_ns()
        async with watching(observer, recorder):
            await self._work(recorder, nemesis, pairs)
            self._say("final reads")
            recorder.event("phase", "final-reads")
            for workload, ctx in pairs:
                with self._noted(recorder, f"final reads of {workload.name} failed"):
                    async with asyncio.timeout(self._reads_s):
                        await workload.finish(ctx)
            if self._reads_s == FINAL_READS_S:
                with self._noted(recorder, "the cluster did not stay whole"):
                    await wait_converged(self._target)
        await observer.sample(usage=True)

    async def _work(
        self, recorder: Recorder, nemesis: Nemesis, pairs: Sequence[tuple[Workload, WorkloadContext]]
    ) -> None:
        recorder.event("phase", "workloads")
        working = [asyncio.create_task(workload.run(ctx), name=workload.name) for workload, ctx in pairs]
        try:
            await asyncio.sleep(max(QUIET_S, min(MAX_QUIET_S, self._options.duration_s * QUIET_SHARE)))
            self._say(f"injecting faults for {self._options.duration_s:.0f} s")
            await nemesis.run(self._options.duration_s)
            await self._heal(recorder, nemesis)
            await asyncio.sleep(QUIET_S)
        finally:
            for _, ctx in pairs:
                ctx.stopping.set()
            await self._end(recorder, working)

    async def _heal(self, recorder: Recorder, nemesis: Nemesis) -> None:
        self._say("healing")
        with self._noted(recorder, "the cluster was not healed"):
            await nemesis.heal_all()
        self._heal_ns = time.monotonic_ns()
        recorder.event("phase", "heal")
        with self._noted(recorder, "the cluster has not converged"):
            await wait_converged(self._target)
            recorder.event("phase", "converged")
            self._reads_s = FINAL_READS_S

    async def _end(self, recorder: Recorder, working: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the workloads to stop; one that does not is cancelled, one that failed is named."""
        _, late = await asyncio.wait(working, timeout=STOP_WORKLOADS_S)
        for task in late:
            task.cancel()
        for task, outcome in zip(working, await asyncio.gather(*working, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                recorder.event("note", f"workload {task.get_name()} failed: {outcome!r}", trouble=True)

    @contextlib.contextmanager
    def _noted(self, recorder: Recorder, what: str) -> Iterator[None]:
        """What goes wrong here is for the checkers to judge: the run goes on to its end."""
        try:
            yield
        except Exception as error:
            recorder.event("note", f"{what}: {error!r}", trouble=True)
            self._say(f"{what}: {error}")

    def _context(self, recorder: Recorder, workload: Workload) -> WorkloadContext:
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
