"""Consumers that stand still after everything is healed are convicted. A short wait is valid."""

import asyncio
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from histories import QUEUE, History, applies, verdict

from dledger_chaos.checkers.standing import BOUND_S, LOCKED_BOUND_S
from dledger_chaos.workloads.base import WorkloadContext
from dledger_chaos.workloads.members import work
from dledger_chaos.workloads.records import Seen

SECOND = 10**9
HEALED = 200 * SECOND


def told(workload="consumers", process="member-1", *, sent_s: float, given_s: float | None, queue=QUEUE, value="a"):
    """Return a history with one message, sent and delivered at these seconds after the cluster was whole again."""
    history = History(workload).event("phase", HEALED - SECOND, "heal").event("phase", HEALED, "converged")
    sent = HEALED + int(sent_s * SECOND)
    history.send(value, 0, queue=queue, begin=sent - 1, end=sent)
    if given_s is not None:
        given = HEALED + int(given_s * SECOND)
        history.add("deliver", queue, Seen(0, value, 0), process=process, begin=given - 1, end=given)
    return history.end([value], queue=queue)


def judged(history: History):
    return verdict("standing-still", history.run(end_ns=HEALED + 100 * SECOND))


@pytest.mark.parametrize(
    ("history", "seconds"),
    [
        (told(sent_s=1, given_s=1 + BOUND_S - 0.5), BOUND_S - 0.5),
        (told(sent_s=-60, given_s=BOUND_S - 0.5), BOUND_S - 0.5),  # earlier messages count from the healing on
        (told("orderly", sent_s=1, given_s=1 + BOUND_S + 5), BOUND_S + 5),
        (told(sent_s=1, given_s=1 + BOUND_S + 0.5), None),
        (told(sent_s=-60, given_s=BOUND_S + 0.5), None),
        (told(sent_s=1, given_s=None), None),
        (told("orderly", sent_s=1, given_s=2 + LOCKED_BOUND_S), None),
    ],
)
def test_timely_delivery_is_valid_and_reported_with_its_bound_and_a_queue_that_stands_still_invalid(history, seconds):
    found = judged(history)
    if seconds is None:
        assert found.result == "invalid"
        assert found.examples[0].startswith(f"{QUEUE} stood still for {history.workload}: a ")
    else:
        assert (found.result, found.examples) == ("valid", ())
        assert (found.figures["bound_s"], found.figures["max_s"]) == (BOUND_S, pytest.approx(seconds))


def test_one_stalled_group_beside_others_is_invalid():
    """Messages that a group's filter leaves out do not count for that group."""
    found = judged(told("filtered", "sql-1", sent_s=1, given_s=2, value="f:p:6"))
    assert [line.split(":")[0] for line in found.examples] == [f"{QUEUE} stood still for filtered tags"]


def test_standing_still_is_judged_only_after_the_healing_of_a_whole_cluster():
    assert judged(told(sent_s=-5, given_s=-2)).result == "unknown"
    assert not applies("standing-still", History("consumers").event("phase", 1, "heal").run())


@pytest.mark.parametrize(("given_s", "result", "seconds"), [(107, "valid", 7.0), (112, "invalid", 12.0)])
def test_no_group_stands_still_while_it_has_no_member(given_s, result, seconds):
    """The members leave after 6 s. The member that waits for the rest comes after 105 s."""
    history = told(sent_s=1, given_s=given_s).event("phase", HEALED + 6 * SECOND, "final-reads")
    stays = HEALED + 105 * SECOND
    history.add("stay", "", None, process="last", begin=stays, end=stays)
    found = verdict("standing-still", history.run(end_ns=HEALED + 300 * SECOND))
    assert (found.result, found.figures["max_s"]) == (result, pytest.approx(seconds))


async def test_long_work_on_a_message_ends_once_the_cluster_is_whole() -> None:
    """Otherwise a handler of up to 12 s is judged as a queue that stands still."""
    healed = asyncio.Event()
    ctx = cast(WorkloadContext, SimpleNamespace(healed=healed))
    rng = Mock(random=Mock(return_value=0.0), uniform=Mock(return_value=3600.0))
    working = asyncio.ensure_future(work(ctx, rng, 0.0))
    await asyncio.sleep(0)
    assert not working.done()
    healed.set()
    async with asyncio.timeout(60):
        await working
        await work(ctx, rng, 0.0)
