"""Fingerprints of simulated runs: two builds that behave alike have the same ones.

A fingerprint is one line, of words in pairs:

    seed 7 events 3883 seconds 11.750 entries 88 terms 3 log … state … files … answers … counts …

    events    calls that the scheduler made, `seconds` when the last one was
    entries   committed, `terms` with a leader
    log       positions and bytes of every node's log
    state     where every node's replica stands, its syncs and elections, and the digest of its state
    files     of every node's disk, the log's included
    answers   to clients, with their moments: frames of brokers byte for byte; of registers what was written and read
    counts    operations by outcome, faults by kind, rare things that happened, what each life of a node has counted

The last five are the first digits of a SHA-256. A run that broke a promise has `broken promise-in-words` instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from typing import Final
from unittest import mock

from dledger.replica.describe import describe
from dledger_broker.kernel.counters import BrokerCounters
from dledger_sim.brokers.connection import SimConnection
from dledger_sim.brokers.lab import SCENARIOS
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.campaign import run_case
from dledger_sim.log.cases import Case, Limits
from dledger_sim.log.group import Life, SimGroup
from dledger_sim.log.plan import Plan
from dledger_sim.log.run import Outcome
from dledger_sim.log.scenario import Scenario, Trial
from dledger_sim.log.service import Service
from dledger_sim.log.workload import Workload
from tests.recorded.golden_files import GOLDEN

RECORDED_SEEDS: Final = 300
TROUBLE_S: Final = 8.0
"""Simulated seconds of trouble in each run."""
DIGITS: Final = 12

Told = Callable[[str, str | None], None]
"""What a client of registers is told: the outcome, and who may lead."""


def fingerprint(scenario: str, seed: int) -> str:
    """Run one seed of a scenario."""
    case, kept, answers = Case(scenario, seed, TROUBLE_S), _Kept(SCENARIOS[scenario]), _Hash()
    with _answers_told(answers.add):
        outcome = run_case(case, kept)
    if outcome.violation is not None:
        return f"seed {seed} broken {outcome.violation.promise.replace(' ', '-')}"
    group = kept.trial.group
    words = {
        "seed": seed,
        "events": outcome.events,
        "seconds": f"{outcome.seconds:.3f}",
        "entries": outcome.committed,
        "terms": outcome.terms,
        "log": _log(group),
        "state": _state(group),
        "files": _files(group),
        "answers": answers,
        "counts": _counts(outcome, kept.trial),
    }
    return " ".join(f"{name} {value}" for name, value in words.items())


def recorded(scenario: str) -> list[str] | None:
    """The fingerprints of an earlier build, those of the first seeds first; None if there are none yet."""
    path = GOLDEN / "fingerprints" / f"{scenario}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else None


def recorded_scenarios() -> set[str]:
    """Scenarios that an earlier build had."""
    return {path.stem for path in (GOLDEN / "fingerprints").glob("*.txt")}


def record(scenario: str, lines: list[str]) -> None:
    """Write the fingerprints of this build in the place of earlier ones."""
    path = GOLDEN / "fingerprints" / f"{scenario}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def differences(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """The seeds whose fingerprints differ, each with the parts that do."""
    return [
        f"seed {_words(new)['seed']}: {_difference(old, new)}"
        for old, new in zip(before, now, strict=False)
        if old != new
    ]


def _difference(before: str, now: str) -> str:
    old, new = _words(before), _words(now)
    return ", ".join(
        f"{name} {old.get(name)} -> {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)
    )


def _words(line: str) -> dict[str, str]:
    words = line.split()
    return dict(zip(words[::2], words[1::2], strict=True))


class _Hash:
    """A SHA-256 of values that have the same `repr` on every machine."""

    def __init__(self) -> None:
        self._sha = sha256()

    def add(self, *values: float | str | bytes | Collection[str]) -> None:
        self._sha.update(repr(values).encode())

    def __str__(self) -> str:
        return self._sha.hexdigest()[:DIGITS]


class _Kept:
    """A scenario whose run can be looked at when it is over."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.trial: _KeptTrial

    @property
    def name(self) -> str:
        return self._scenario.name

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        return self._scenario.plan(random, kinds)

    def draw(self, random: Random, limits: Limits) -> _KeptTrial:
        self.trial = _KeptTrial(self._scenario.draw(random, limits))
        return self.trial


class _KeptTrial:
    """See `_Kept`."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.group: SimGroup
        self.counters: list[BrokerCounters] = []
        """Of each life of a broker."""
        self.stop, self.judge = trial.stop, trial.judge

    def serve(self, group: SimGroup, life: Life) -> Service:
        service = self._trial.serve(group, life)
        if isinstance(service, SimBroker):
            self.counters.append(service.counters)
        return service

    def start(self, group: SimGroup) -> None:
        self.group = group
        self._trial.start(group)

    @property
    def counts(self) -> Counter[str]:
        return self._trial.counts


@contextmanager
def _answers_told(told: Callable[..., None]) -> Iterator[None]:
    """Tell what clients are answered, before it is on its way to them; when, and by whom."""
    answer_frame, write, read, lift = SimConnection.answer_frame, Workload.write, Workload.read, Workload._lift

    def answered(self: SimConnection, frame: bytes) -> None:
        told(_moment(self._group), self.key, frame)
        answer_frame(self, frame)

    def ending(workload: Workload, life: Life, what: str, done: Told) -> Told:
        def ended(outcome: str, hint: str | None) -> None:
            told(_moment(workload.group), life.node.name, what, outcome, hint)
            done(outcome, hint)

        return ended

    def written(self: Workload, life: Life, key: int, padding: int, done: Told) -> None:
        write(self, life, key, padding, ending(self, life, f"write {key} {padding}", done))

    def has_read(self: Workload, life: Life, key: int, done: Told) -> None:
        read(self, life, key, ending(self, life, f"read {key}", done))

    def seen(self: Workload, life: Life, key: int, position: int) -> None:
        told(key, position)
        lift(self, life, key, position)

    with (
        mock.patch.object(SimConnection, "answer_frame", answered),
        mock.patch.object(Workload, "write", written),
        mock.patch.object(Workload, "read", has_read),
        mock.patch.object(Workload, "_lift", seen),
    ):
        yield


def _moment(group: SimGroup) -> str:
    """In microseconds: the last digits of a float are the mathematical library's."""
    return f"{group.scheduler.now:.6f}"


def _lives(group: SimGroup) -> Iterator[tuple[str, Life]]:
    for name, node in sorted(group.nodes.items()):
        assert node.life is not None, f"{name} does not run at the end"
        yield name, node.life


def _log(group: SimGroup) -> _Hash:
    found, segment_bytes = _Hash(), group.settings.segment_bytes
    for name, life in _lives(group):
        store = life.replica.store
        position, end = store.first_position, store.end_position
        found.add(name, position, end)
        while position < end:
            size = min(segment_bytes - position % segment_bytes, end - position)
            found.add(store.read(position, size))
            position += size
    return found


def _state(group: SimGroup) -> _Hash:
    found = _Hash()
    for name, life in _lives(group):
        replica, store = life.replica, life.replica.store
        found.add(name, replica.engine.term, replica.engine.role.name, str(replica.engine.table.membership))
        found.add(store.last_index, store.durable, replica.engine.commit_index, replica.applied_index)
        status = describe(replica)
        found.add(status.syncs, status.elections, life.machine.digest())
    return found


def _files(group: SimGroup) -> _Hash:
    found = _Hash()
    for name, node in sorted(group.nodes.items()):
        image = node.disk.image()
        found.add(name, sorted(image.directories))
        for path, content in sorted(image.files.items()):
            found.add(path, content)
    return found


def _counts(outcome: Outcome, trial: _KeptTrial) -> _Hash:
    found = _Hash()
    for counters in trial.counters:
        found.add(repr(sorted(counters.as_dict().items())))
    for counted in (outcome.counts, outcome.injected, outcome.happened):
        found.add(repr(sorted(counted.items())))
    return found
