"""One case from start to verdict: trouble, then healing, then proof that the group is whole."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random

from dledger import loop_guard
from dledger.engines.named import engine_named
from dledger.replica.describe import describe
from dledger.replica.replica import Replica
from dledger_sim.log.cases import Case, Strike
from dledger_sim.log.group import DISK_ERRORS, SimGroup, SimNode
from dledger_sim.log.invariants import Violation, require
from dledger_sim.log.nemesis import Nemesis
from dledger_sim.log.scenario import Scenario, Trial
from dledger_sim.log.scheduler import Scheduler

CONVERGE_S = 60.0
OPERATOR_S = 15.0
SCRUB_S = 15.0
"""By then every node has read all of its log again."""
STEP_S = 0.25
NODE_PACKAGES = ("dledger", "dledger_broker")
"""What nodes log comes from these."""
WARM_UP_S = 1.0
AWAKE_S = 2.0
"""Clients go on for so long after the last pause, which may end after all other trouble: at most a minute."""


@dataclass(slots=True)
class Outcome:
    """What came of one case."""

    case: Case
    seconds: float = 0.0
    """Simulated."""
    cpu_s: float = 0.0
    """That it took."""
    events: int = 0
    committed: int = 0
    """Entries."""
    terms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Operations by outcome, and what else the clients counted."""
    injected: Counter[str] = field(default_factory=Counter)
    """Faults by kind."""
    happened: Counter[str] = field(default_factory=Counter)
    """Rare things that came of the faults (see `Witness.happened`)."""
    strikes: list[Strike] = field(default_factory=list)
    """The faults as values: with them the run can be repeated in part."""
    violation: Violation | None = None
    place: str = ""
    """Where in the code, if an exception revealed it."""


def simulate(case: Case, scenario: Scenario, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one case; a broken promise ends it and stands in the outcome."""
    plan = scenario.plan(_random(case, "plan"), case.kinds)
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
        with _errors_judged(group), nullcontext() if group.threads is None else group.threads.installed():
            _run(group, trial, nemesis, case.seconds)
    except _StandsStillError:
        group.witness.happened["group stands still for good"] += 1
    except Violation as violation:
        outcome.violation = violation
        if violation.__cause__ is not None:
            outcome.place = "".join(traceback.format_exception(violation.__cause__))
    except Exception as error:
        outcome.violation = Violation("nothing but a broken promise ends a run", repr(error))
        outcome.place = traceback.format_exc()
    if outcome.violation is None and len(loop_guard.violations) > refused:
        # Whoever was refused it may have caught that error, as a finalizer's are.
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
    """Takes an error that a node logs for a broken promise, unless a fault of its disk explains it."""

    def __init__(self, group: SimGroup) -> None:
        super().__init__(logging.ERROR)
        self._group = group

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        error = record.exc_info[1] if record.exc_info else None
        if not (isinstance(error, DISK_ERRORS) or self._group.rotten or self._group.was_flipped):
            raise Violation("no node logs an error that no fault explains", record.getMessage()) from error


@contextmanager
def _errors_judged(group: SimGroup) -> Iterator[None]:
    judge = _ErrorJudge(group)
    loggers = [logging.getLogger(package) for package in NODE_PACKAGES]
    for logger in loggers:
        logger.addHandler(judge)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(judge)


def _random(case: Case, of: str) -> Random:
    """A source of its own for each part of a run: that one draws more or less changes nothing for the others."""
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
    """Nobody can ever lead again, as an operator was told when accepting a loss."""


def _converge(group: SimGroup) -> None:
    """Wait until everybody is a voter again and has everything."""
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
    """Whether the only voter lost, by an accepted loss, the entry that made it that.

    It needs the votes of the former voters, whose logs are longer and forbid them; and they may stand for no election.
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
    """What an operator does with a node whose files rotted where nobody has the bytes any more: give it empty ones."""
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
    """The kept bytes of a whole group's replicas are equal, blanks included, and so are their states; rot is healed."""
    _converge(group)
    deadline = group.scheduler.now + SCRUB_S
    while (group.rotten or _flipped_records(group)) and group.scheduler.now < deadline:
        if not _flipped_records(group) and not _lost_ranges(group) and _different_segment(group) is None:
            break
        group.scheduler.run_until(group.scheduler.now + STEP_S)
        _converge(group)
    lost = _lost_ranges(group)
    require(not lost, "what a node has lost it has again from the others", lost=lost)
    flipped = _flipped_records(group)
    require(not flipped, "what rotted in a small file is written anew", flipped=flipped)
    different = _different_segment(group)
    require(different is None, "the committed bytes of all replicas are equal", segment=different)
    states = {life.machine.digest() for node in group.nodes.values() if (life := node.life) is not None}
    require(len(states) == 1, "the states of all replicas are equal", digests=states)


def _different_segment(group: SimGroup) -> int | None:
    """Where a segment starts that is not the same everywhere."""
    replicas = _replicas(group)
    first = max(replica.store.first_position for replica in replicas)
    end = replicas[0].store.end_position
    size = group.settings.segment_bytes
    if group.rotten:
        end -= end % size  # the segment that is being written is scrubbed once it is full
    for start in range(first, end, size):
        length = min(size, end - start)
        contents = {replica.store.read(start, length) for replica in replicas}
        if len(contents) > 1:
            return start
    return None


def _flipped_records(group: SimGroup) -> list[str]:
    """Small files that still have the bit that rotted."""
    return [f"{node.name} {node.flipped}" for node in group.nodes.values() if node.has_flipped_record]


def _lost_ranges(group: SimGroup) -> list[str]:
    """What nodes lack that all others keep."""
    first = max(replica.store.first_position for replica in _replicas(group))
    return [
        f"{replica.me.node_id} {lost}"
        for replica in _replicas(group)
        for lost in replica.store.corrupt_ranges
        if lost.end > first
    ]


def _replicas(group: SimGroup) -> list[Replica]:
    return [node.life.replica for node in group.nodes.values() if node.life is not None]
