import pytest

from dledger.errors import BusyError
from dledger_broker.testing.environment import FakeEnvironment
from dledger_broker.views.writer import BUSY_RETRY_S, ViewWriter


def test_an_abandoned_writer_begins_no_further_job():
    """An abandoned writer begins no further job, because the threads that run its jobs may have ended."""
    env = FakeEnvironment()
    writer = ViewWriter(env)
    ran: list[str] = []
    reported: list[object] = []
    for name in ("first", "second"):
        writer.submit(lambda name=name: ran.append(name), reported.append)
    writer.abandon()
    writer.submit(lambda: ran.append("third"), reported.append)
    env.run_ready()
    assert (ran, reported) == (["first"], []), "the first was under way"


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_busy_job_is_retried_unless_the_writer_was_abandoned(abandoned: bool):
    env = FakeEnvironment()
    writer = ViewWriter(env)
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise BusyError("no room")

    writer.submit(work, lambda _: None)
    env.run_ready()
    if abandoned:
        writer.abandon()
    env.advance(2 * BUSY_RETRY_S)
    assert len(tries) == (1 if abandoned else 2)
