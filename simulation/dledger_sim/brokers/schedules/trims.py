"""Schedules of trims whose search for the first kept offsets takes long, with other events during the search."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, cast

from dledger_remoting.codes import RequestCode
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.group import Life
from dledger_sim.log.registers import leading

T = TypeVar("T")
PASSING: Final = "passing"


def trim_that_outlives_its_term() -> None:
    """Check that a trim whose search outlasts two handovers is not proposed by the leader of a later term.

    1. A leader begins to trim; the search for the first kept offsets takes long.
    2. It hands over to another node, which hands over to it again.
    3. The search ends. The other leader may have taken pins below the trim's position.

    Seeds rarely have one node lead twice while it searches: its disk would have to be slow for seconds, but only for
    the search.
    """
    brokers = Brokers()
    leader, heir = brokers.leader, brokers.follower
    _fill(brokers, TOPIC)
    life = leading(brokers.group)
    finish = _begin_trim(life)
    brokers.hand_over(heir)
    brokers.run(2.0)
    assert brokers.leader == heir
    brokers.hand_over(leader)
    brokers.run(2.0)
    assert brokers.leader == leader
    finish()
    brokers.run(2.0)
    assert brokers.workload.truth.trimmed_to == 0


def trim_that_outlives_a_failed_handover() -> None:
    """Check that a trim whose search outlasts a failed handover is not proposed, and blocks no other trim.

    1. A leader begins to trim; the search for the first kept offsets takes long.
    2. It begins to hand over to a node that it cannot reach, takes no proposals for a while, and remains leader.
    3. The search ends.
    4. The leader gets another request to trim, and trims.

    Seeds rarely have a handover fail during a search: its disk would have to be slow for as long.
    """
    brokers = Brokers()
    leader, heir = brokers.leader, brokers.follower
    _fill(brokers, TOPIC)
    life = leading(brokers.group)
    finish = _begin_trim(life)
    service = cast(SimBroker, life.service)
    reign = service.reign
    brokers.group.network.block(leader, heir)
    brokers.hand_over(heir)
    for _ in range(40):
        brokers.run(0.1)
        if service.reign > reign:
            break
    assert service.reign > reign
    finish()
    brokers.run(1.0)
    assert brokers.workload.truth.trimmed_to == 0
    service.trim(life.replica.snapshots.list()[-1].position)
    brokers.run(1.0)
    assert brokers.workload.truth.trimmed_to > 0


def trim_of_a_topic_that_was_made_anew() -> None:
    """Check that a trim takes no message of a topic that was deleted and made again after the trim's search.

    1. A leader begins to trim, and finds the first kept offset of a queue.
    2. The topic is deleted, made again, and gets a message.
    3. The first kept offsets are proposed, including that of the earlier topic.

    Seeds find this once in a hundred runs. Deletion and creation would have to meet one of the few searches, in a topic
    so old that a trim takes some of it.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    fields = brokers.workload.topic_fields(PASSING)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    brokers.run(1.0)
    _fill(brokers, PASSING)
    finish = _begin_trim(leading(brokers.group))
    brokers.ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PASSING})
    brokers.run(1.0)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    brokers.run(1.0)
    brokers.send(connection, PASSING)
    brokers.run(1.0)
    finish()
    brokers.run(2.0)
    assert brokers.workload.truth.trimmed_to > 0
    queue = cast(SimBroker, leading(brokers.group).service).broker.queue(PASSING, 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 1)


def _fill(brokers: Brokers, topic: str) -> None:
    """Send so many messages that the log can be trimmed."""
    connection = brokers.connect(brokers.leader)
    for _ in range(30):
        brokers.send(connection, topic, padding=4000)
        brokers.run(0.1)


def _begin_trim(life: Life) -> Callable[[], None]:
    """Let a leader search for the first kept offsets. It learns the result when the returned function is called."""
    environment, held = life.environment, list[Callable[[], None]]()
    run_blocking = environment.run_blocking

    def hold_back(lane: str, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        run_blocking(lane, work, lambda result: held.append(partial(done, result)))

    environment.run_blocking = hold_back  # type: ignore[method-assign]
    cast(SimBroker, life.service).trim(life.replica.snapshots.list()[-1].position)
    environment.run_blocking = run_blocking  # type: ignore[method-assign]

    def finish() -> None:
        held.pop()()

    return finish


TRIM_SCHEDULES: Final = (
    trim_that_outlives_its_term,
    trim_that_outlives_a_failed_handover,
    trim_of_a_topic_that_was_made_anew,
)
