"""Leader jobs: each runs once for each readiness, through a handle that ends with it, and none ends silently."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import pytest

from dledger.environment import COLD
from dledger.errors import BusyError, LogError, NotLeaderError, OutcomeUnknownError
from dledger.statemachine import Leadership
from dledger_base.invariants import InvariantError
from dledger_broker.kernel.jobs import FIRST_PAUSE_S, MAX_PAUSE_S, SETTLED_S, JobHandle
from dledger_broker.kernel.topics import PutTopic, TopicTable
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.topics import TopicConfig
from tests.broker.telling import tell

PERIOD_S = 10.0


class Ticking:
    """Job that looks every ten seconds."""

    name = "ticking"

    def __init__(self) -> None:
        self.handles: list[JobHandle] = []
        self.looks: list[JobHandle] = []
        self.broken: Exception | None = None

    def run(self, handle: JobHandle) -> None:
        self.handles.append(handle)
        handle.call_later(PERIOD_S, partial(self.look, handle))

    def look(self, handle: JobHandle) -> None:
        handle.call_later(PERIOD_S, partial(self.look, handle))
        self.looks.append(handle)
        if self.broken is not None:
            raise self.broken


@pytest.fixture
def job() -> Ticking:
    return Ticking()


@pytest.fixture
def broker(job: Ticking) -> BrokerInMemory:
    """Return a leader with this job."""
    broker = BrokerInMemory()
    broker.machine.jobs.open([job], broker.node, broker.writer)
    return broker


def be_ready(broker: BrokerInMemory, ready: bool) -> None:
    """Let the node lead the same term, and take proposals or not."""
    broker.node.is_ready = ready
    broker.machine.on_leadership(Leadership(broker.node.term, NODE_ID, is_leader=True, ready=ready))


def put_topic() -> PutTopic:
    return PutTopic(TopicConfig("T", 1, 1), 0)


def test_a_job_runs_once_for_each_time_that_its_node_is_ready_until_it_stops(job: Ticking) -> None:
    broker = BrokerInMemory(lead=False)
    broker.machine.jobs.open([job], broker.node, broker.writer)
    broker.env.advance(PERIOD_S * 3)
    assert job.handles == []
    broker.node.lead()
    be_ready(broker, True)
    broker.env.advance(PERIOD_S * 3 + 1)
    assert (len(job.handles), len(job.looks)) == (1, 3)
    broker.node.step_down()
    broker.env.advance(PERIOD_S * 3)
    assert (len(job.handles), len(job.looks)) == (1, 3)
    broker.node.lead()
    broker.env.advance(PERIOD_S + 1)
    assert (len(job.handles), len(job.looks)) == (2, 4)
    broker.machine.jobs.close()
    assert job.handles[1].is_stopped
    broker.node.step_down()
    broker.node.lead()
    assert len(job.handles) == 2


CALLS: list[Callable[[JobHandle], object]] = [
    lambda handle: handle.stage_command(put_topic(), lambda _: None),
    lambda handle: handle.trim(0),
    lambda handle: handle.call_later(1.0, lambda: None),
    lambda handle: handle.run_blocking(COLD, lambda: None, lambda _: None),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_handle_refuses_every_call_before_the_overlay_is_reset(
    broker: BrokerInMemory, job: Ticking, monkeypatch: pytest.MonkeyPatch, call: Callable[[JobHandle], object]
) -> None:
    (handle,) = job.handles
    call(handle)
    refused = list[str]()

    def reset_staged(_table: TopicTable) -> None:
        with pytest.raises(NotLeaderError):
            call(handle)
        refused.append("before the reset")

    monkeypatch.setattr(TopicTable, "reset_staged", reset_staged)
    tell(broker.machine.events, "new_leadership", lambda _: refused.append("before it is told"))
    broker.node.step_down()
    assert refused == ["before the reset", "before it is told"]


def test_a_handover_that_fails_ends_the_run_and_begins_another(broker: BrokerInMemory, job: Ticking) -> None:
    results = list[object]()
    (first,) = job.handles
    first.run_blocking(COLD, lambda: "found", results.append)
    be_ready(broker, False)
    with pytest.raises(NotLeaderError):
        first.stage_command(put_topic(), lambda _: None)
    be_ready(broker, True)
    with pytest.raises(NotLeaderError):
        first.stage_command(put_topic(), lambda _: None)
    broker.env.advance(PERIOD_S + 1)
    assert results == []
    assert [handle is first for handle in job.handles] == [True, False]
    assert job.looks == job.handles[1:]


def test_a_proposal_of_a_job_gets_its_outcome_after_the_run_has_ended(broker: BrokerInMemory, job: Ticking) -> None:
    outcomes = list[LogError | None]()
    (handle,) = job.handles
    handle.stage_command(put_topic(), outcomes.append)
    handle.stage_command(put_topic(), handle.guarded(lambda _: pytest.fail("the run has ended")))
    be_ready(broker, False)
    broker.env.run_ready()
    assert outcomes == [None]
    be_ready(broker, True)
    job.handles[-1].stage_command(put_topic(), outcomes.append)
    broker.node.step_down()
    assert isinstance(outcomes[-1], OutcomeUnknownError)


def test_a_failed_job_is_logged_counted_and_restarted_after_a_growing_pause(
    broker: BrokerInMemory, job: Ticking, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = broker.machine.jobs
    assert jobs.failures == {"ticking": 0}
    job.broken = ValueError("of no account")
    pauses = list[float]()
    for count in range(1, 10):
        broker.env.advance(PERIOD_S)
        assert jobs.failures == {"ticking": count}
        assert jobs.handle_of("ticking") is None
        failed_at, runs = broker.env.now(), len(job.handles)
        while len(job.handles) == runs:
            broker.env.advance(0.5)
        pauses.append(broker.env.now() - failed_at)
    assert pauses == [FIRST_PAUSE_S * 2**n for n in range(6)] + [MAX_PAUSE_S] * 3
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 9
    assert errors[0] == "event=job_failed job=ticking error='of no account' again_s=1"
    job.broken = None
    broker.env.advance(SETTLED_S)
    job.broken = ValueError("again")
    broker.env.advance(PERIOD_S)
    runs = len(job.handles)
    broker.env.advance(FIRST_PAUSE_S)
    assert len(job.handles) == runs + 1, "it had settled"


def test_a_failed_run_of_a_job_is_replaced_unless_the_leader_is_deposed(broker: BrokerInMemory, job: Ticking) -> None:
    job.broken = ValueError()
    broker.env.advance(PERIOD_S)
    job.broken = None
    broker.env.advance(PERIOD_S + FIRST_PAUSE_S)
    assert [handle is job.handles[0] for handle in job.looks] == [True, False]
    job.broken = ValueError()
    broker.env.advance(PERIOD_S)
    broker.node.step_down()
    broker.env.advance(MAX_PAUSE_S)
    assert len(job.handles) == 2


def test_two_exceptions_of_one_run_are_one_failure(broker: BrokerInMemory, job: Ticking) -> None:
    (handle,) = job.handles

    def refused(_error: LogError | None) -> None:
        raise ValueError("the first")

    def propose() -> None:
        handle.stage_command(put_topic(), handle.guarded(refused))
        raise ValueError("the second")

    broker.node.stage_error = BusyError("64 MiB wait")
    handle.call_later(1.0, propose)
    broker.env.advance(1.0)
    assert broker.machine.jobs.failures == {"ticking": 1}


def test_a_not_leader_error_is_no_failure_of_a_job_and_an_invariant_error_reaches_the_event_loop(
    broker: BrokerInMemory, job: Ticking
) -> None:
    job.broken = NotLeaderError(None, 1)
    broker.env.advance(PERIOD_S)
    assert broker.machine.jobs.failures == {"ticking": 0}
    job.broken = InvariantError("a promise")
    broker.env.advance(FIRST_PAUSE_S)
    assert len(job.handles) == 2, "it leads still"
    with pytest.raises(InvariantError, match="a promise"):
        broker.env.advance(PERIOD_S)


def test_a_failing_job_does_not_stop_other_jobs_which_have_other_names() -> None:
    broker, first, second = BrokerInMemory(), Ticking(), Ticking()
    with pytest.raises(InvariantError, match="different names"):
        broker.machine.jobs.open([first, second], broker.node, broker.writer)
    second.name = "other"
    first.broken = ValueError()
    broker.machine.jobs.open([first, second], broker.node, broker.writer)
    broker.env.advance(PERIOD_S * 4 + 1)
    assert len(second.looks) == 4
    assert broker.machine.jobs.failures == {"ticking": 3, "other": 0}


def test_a_refused_proposal_is_told_to_the_job(broker: BrokerInMemory, job: Ticking) -> None:
    outcomes = list[LogError | None]()
    broker.node.stage_error = BusyError("64 MiB wait")
    job.handles[0].stage_command(put_topic(), outcomes.append)
    assert [type(outcome) for outcome in outcomes] == [BusyError]
    assert broker.machine.jobs.failures == {"ticking": 0}
