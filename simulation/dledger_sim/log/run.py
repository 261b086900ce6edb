"""Run of a case from start to verdict: faults, then healing, then proof that the group is whole."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random

from dledger.engines.named import engine_named
from dledger.replica.describe import describe
from dledger.replica.replica import Replica
from dledger_base import loop_guard
from dledger_sim.log.cases import Case, Strike
from dledger_sim.log.group import DISK_ERRORS, SimGroup, SimNode
from dledger_sim.log.invariants import Violation, require
from dledger_sim.log.nemesis import Nemesis
from dledger_sim.log.scenario import Scenario, Trial
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.surroundings import with_surroundings
from dledger_sim.log.violation import PlannedFailureError

CONVERGE_S = 60.0
OPERATOR_S = 15.0
SCRUB_S = 15.0
"""Time limit within which every node has read all of its log again, in seconds."""
STEP_S = 0.25
NODE_PACKAGES = ("dledger", "dledger_broker")
"""Packages whose log records are those of nodes."""
CLIENT_PACKAGES = ("dledger_client",)
"""Packages whose log records are those of client programs."""
WARM_UP_S = 1.0
AWAKE_S = 2.0
"""Time for which clients continue after the last pause, in seconds.

That pause may end up to a minute after all other faults.
"""


@dataclass(slots=True)
class Outcome:
    """Outcome of a case."""

    case: Case
    seconds: float = 0.0
    """Simulated time."""
    cpu_s: float = 0.0
    """CPU time of the run."""
    events: int = 0
    committed: int = 0
    """Number of entries that were committed."""
    terms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Operations by outcome, and other counts of the clients."""
    injected: Counter[str] = field(default_factory=Counter)
    """Faults by kind."""
    happened: Counter[str] = field(default_factory=Counter)
    """Rare things that the faults caused (see `Witness.happened`)."""
    strikes: list[Strike] = field(default_factory=list)
    """Faults as values. With them the run can be repeated in part."""
    violation: Violation | None = None
    place: str = ""
    """Traceback, if an exception led to the violation."""


def simulate(case: Case, scenario: Scenario, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run a case. A broken promise ends the run and is recorded in the outcome."""
    plan = scenario.plan(_random(case, "plan"), case.kinds)
    if not case.has_usual_machines:
        plan = with_surroundings(plan, _random(case, "surroundings"))
    trial = scenario.draw(_random(case, "clients"), case.limits)
    scheduler = Scheduler()
    group = SimGroup(scheduler, _random(case, "group"), plan.group, trial.serve, engine=engine_named(case.engine))
    group.trace = trace
    nemesis = Nemesis(
        group,
        _random(case, "faults"),
        kinds=plan.kinds,
        interval_s=plan.interval_s,
        most_at_once=plan.most_at_once,
        trim_s=plan.trim_s,
        strikes=case.strikes,
    )
    refused = len(loop_guard.violations)
    outcome = Outcome(case, injected=nemesis.injected, happened=group.witness.happened, strikes=nemesis.strikes)
    for node in group.nodes.values():
        node.sync_delay_s = plan.sync_s
    group.say(f"{plan}")
    try:
        threads = nullcontext() if group.threads is None else group.threads.installed()
        with _errors_judged(group), _client_errors_judged(), threads:
            _run(group, trial, nemesis, case.seconds)
    except _StandsStillError:
        group.witness.happened["group stands still for good"] += 1
    except Violation as violation:
        outcome.violation = violation
        if violation.__cause__ is not None:
            outcome.place = "".join(traceback.format_exception(violation.__cause__))
    except Exception as error:
        outcome.violation = Violation("only a broken promise ends a run", repr(error))
        outcome.place = traceback.format_exc()
    finally:
        for tidy in group.on_over:
            tidy()
    if outcome.violation is None and len(loop_guard.violations) > refused:
        # The code that was refused may have caught the error, as happens in a finalizer.
        outcome.violation = Violation("no event loop works on a disk", "; ".join(loop_guard.violations[refused:][:5]))
    if group.threads is not None:
        group.witness.happened["thread switched"] = group.threads.switches
    outcome.seconds = scheduler.now
    outcome.events = scheduler.events
    outcome.committed = len(group.witness.committed)
    outcome.counts = trial.counts
    outcome.terms = len(group.witness.leaders)
    return outcome


class _ErrorJudge(logging.Handler):
    """Log handler that turns an error of a node into a violation, unless a fault of its disk explains the error.

    An exception in a task ends only that task, and may go unnoticed. So the first one is kept.
    """

    def __init__(self, group: SimGroup) -> None:
        super().__init__(logging.ERROR)
        self._group = group
        self.first: Violation | None = None

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not (isinstance(error, DISK_ERRORS) or self._group.rotten or self._group.was_flipped):
            violation = Violation("no node logs an error that no fault explains", record.getMessage())
            violation.__cause__ = error
            self.first = self.first or violation
            raise violation


@contextmanager
def _errors_judged(group: SimGroup) -> Iterator[None]:
    judge = _ErrorJudge(group)
    try:
        with _handled_by(judge, NODE_PACKAGES):
            yield
    finally:
        if judge.first is not None:
            raise judge.first  # it ended a task, which may have caused other violations


class _ClientErrorJudge(logging.Handler):
    """Log handler that keeps the first error of a client whose program did not fail.

    It does not raise: an exception would end only a task there.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: Violation | None = None

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if self.first is None and not isinstance(error, PlannedFailureError):
            self.first = Violation("no client logs an error", record.getMessage())
            self.first.__cause__ = error


@contextmanager
def _client_errors_judged() -> Iterator[None]:
    judge = _ClientErrorJudge()
    with _handled_by(judge, CLIENT_PACKAGES):
        yield
    if judge.first is not None:
        raise judge.first


@contextmanager
def _handled_by(handler: logging.Handler, packages: Sequence[str]) -> Iterator[None]:
    loggers = [logging.getLogger(package) for package in packages]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _random(case: Case, of: str) -> Random:
    """Return a separate source of randomness for a part of a run.

    More or fewer draws in one part change no other part.
    """
    return Random(f"{case.seed} {of}")


def _run(group: SimGroup, trial: Trial, nemesis: Nemesis, seconds: float) -> None:
    scheduler = group.scheduler
    for name in group.nodes:
        group.start(name)
    scheduler.run_until(WARM_UP_S)
    trial.start(group)
    nemesis.start()
    scheduler.run_until(WARM_UP_S + seconds)
    nemesis.heal_all()
    if group.paused_until > scheduler.now:
        scheduler.run_until(group.paused_until + AWAKE_S)
    trial.stop()
    _converge(group)
    trial.judge(group)
    compare(group)


class _StandsStillError(Exception):
    """No node can ever lead again. The operator was warned when accepting a loss."""


def _converge(group: SimGroup) -> None:
    """Wait until all nodes have their role again and have everything."""
    scheduler = group.scheduler
    deadline = scheduler.now + CONVERGE_S
    operator_at = scheduler.now + OPERATOR_S
    while not group.healthy():
        if scheduler.now >= operator_at:
            _replace_rotten(group)
        if scheduler.now >= deadline:
            if _lost_what_made_it_alone(group):
                raise _StandsStillError
            states = "; ".join(_describe(node) for node in group.nodes.values())
            raise Violation(f"a healed group is whole within {CONVERGE_S:g} s", states)
        scheduler.run_until(scheduler.now + STEP_S)


def _lost_what_made_it_alone(group: SimGroup) -> bool:
    """Return whether a single voter has lost, by an accepted loss, the entry that made it the only voter.

    It needs the votes of the former voters. Their logs are longer, so they refuse; and they may not campaign
    themselves.
    """
    if not group.witness.losses.are_possible:
        return False
    replicas = _replicas(group)
    alone = {voters[0] for replica in replicas if len(voters := replica.engine.membership.voters) == 1}
    short = [one for one in replicas if one.me in alone and len(one.engine.membership.voters) > 1]
    return any(
        other.engine.membership.voters == (one.me,) and other.store.last_index > one.store.last_index
        for one in short
        for other in replicas
    )


def _replace_rotten(group: SimGroup) -> None:
    """Act as an operator: give a node an empty directory if it has rotten bytes that no other node has any more."""
    for node in group.nodes.values():
        if node.rotten and (node.life is None or node.life.replica.store.corrupt_ranges):
            group.say(f"{node.name} is given an empty directory")
            group.wipe(node.name)
            group.start(node.name)


def _describe(node: SimNode) -> str:
    replica = node.replica
    if replica is None:
        return f"{node.name} is down"
    status = describe(replica)
    return (
        f"{node.name} {status.role} of term {status.term} (ready {status.ready}): last {status.last_index},"
        f" commit {status.commit_index}, applied {status.applied_index}, durable {replica.store.durable},"
        f" voters {status.voters}, learners {status.learners},"
        f" peers {[(peer.node_id, peer.mode, peer.match_index) for peer in status.peers]}"
    )


def compare(group: SimGroup) -> None:
    """Check that the replicas have equal kept bytes, blanks included, and equal states, and that all rot is healed."""
    _converge(group)
    deadline = group.scheduler.now + SCRUB_S
    while (group.rotten or _flipped_records(group)) and group.scheduler.now < deadline:
        if not _flipped_records(group) and not _lost_ranges(group) and _different_segment(group) is None:
            break
        group.scheduler.run_until(group.scheduler.now + STEP_S)
        _converge(group)
    lost = _lost_ranges(group)
    require(not lost, "a node gets lost data back from the other nodes", lost=lost)
    flipped = _flipped_records(group)
    require(not flipped, "a rotten small file is written anew", flipped=flipped)
    different = _different_segment(group)
    require(different is None, "the committed bytes of all replicas are equal", segment=different)
    states = {life.machine.digest() for node in group.nodes.values() if (life := node.life) is not None}
    require(len(states) == 1, "the states of all replicas are equal", digests=states)


def _different_segment(group: SimGroup) -> int | None:
    """Return the start of a segment that differs between replicas, or None."""
    replicas = _replicas(group)
    first = max(replica.store.first_position for replica in replicas)
    end = replicas[0].store.end_position
    size = group.settings.segment_bytes
    if group.rotten:
        end -= end % size  # the segment that is being written is scrubbed only once it is full
    for start in range(first, end, size):
        length = min(size, end - start)
        contents = {replica.store.read(start, length) for replica in replicas}
        if len(contents) > 1:
            return start
    return None


def _flipped_records(group: SimGroup) -> list[str]:
    """Return the small files that still have the bit that rotted."""
    return [f"{node.name} {node.flipped}" for node in group.nodes.values() if node.has_flipped_record]


def _lost_ranges(group: SimGroup) -> list[str]:
    """Return the ranges that a node lacks although all other nodes keep them."""
    first = max(replica.store.first_position for replica in _replicas(group))
    return [
        f"{replica.me.node_id} {lost}"
        for replica in _replicas(group)
        for lost in replica.store.corrupt_ranges
        if lost.end > first
    ]


def _replicas(group: SimGroup) -> list[Replica]:
    return [node.life.replica for node in group.nodes.values() if node.life is not None]
