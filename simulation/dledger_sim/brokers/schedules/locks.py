"""Schedules of ordered consumers whose locks meet changes of leaders, paused nodes, and late requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, cast

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_sim.brokers.connection import BROKER_GROUP, Answer, SimConnection
from dledger_sim.brokers.lockers import LOCKED_GROUP, LOCKED_TOPIC, Locker, LockJudge
from dledger_sim.brokers.schedules.brokers import Brokers
from dledger_sim.brokers.service import SimBroker

MEMBERS: Final = 3
MINUTES: Final = 6
SEEDS: Final = (1, 2, 3)
HANDOVER_S: Final = 25.0
STOPPED_S: Final = 12.0


def group_for_locks() -> Brokers:
    """Return a group of nodes with a consumer group that uses locks."""
    brokers = Brokers()
    fields = {"groupName": LOCKED_GROUP}
    brokers.ask(brokers.connect(brokers.leader), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, _json(fields))
    brokers.run(1.0)
    return brokers


def members_that_come_and_go() -> None:
    """Check members that lock, renew, unlock, reconnect and die for minutes, while leaders hand over or are paused."""
    for seed in SEEDS:
        counts = come_and_go(seed, MINUTES)
        assert min(counts["lock granted"], counts["lock changed hands"]) > 0, counts


def come_and_go(seed: int, minutes: float) -> Counter[str]:
    """Run the same for one seed, and return the counts of events."""
    brokers, random, counts = group_for_locks(), Random(seed), Counter[str]()
    judge = LockJudge(counts)
    for number in range(MEMBERS):
        Locker(brokers.group, random, judge, number).begin()
    for _ in range(int(minutes * 60 / HANDOVER_S)):
        brokers.run(HANDOVER_S * random.random() * 2)
        leader = brokers.leader
        life = brokers.group.nodes[leader].life
        assert life is not None
        if random.random() < 0.5:
            life.environment.pause(brokers.scheduler.now + STOPPED_S * random.random())
            brokers.run(STOPPED_S + 1.0)
            counts["leader stood still"] += 1
        else:
            brokers.hand_over(random.choice(sorted(set(brokers.group.nodes) - {leader})))
            brokers.run(3.0)
            counts["leader handed over"] += 1
    return counts


def late_release_from_an_earlier_connection() -> None:
    """Check that requests that lay in a paused node neither renew a lock for their channel nor end it.

    1. A member asks for a lock through a follower, and unlocks. The follower is paused and passes both on only later.
    2. The member connects to the leader, and is granted the lock.
    3. The follower continues. Another member asks.

    Seeds hardly meet this. A member asks for most queues again right after each release, over the same connection. A
    second after an unanswered request it connects elsewhere. Within that second it would have to lock, unlock, and omit
    that queue from its next request.
    """
    _release_late(lambda _number: {})


def late_release_with_a_lower_number() -> None:
    """Check late requests of a member that numbers its requests: they have lower numbers than the granted request.

    The numbers show that the release is old, over any connection.
    """
    _release_late(lambda number: {"lockSession": "one run of anna", "lockNumber": str(number)})


def _release_late(numbered: Callable[[int], dict[str, str]]) -> None:
    brokers = group_for_locks()
    judge = LockJudge(Counter())
    leader, follower = brokers.leader, brokers.follower
    behind = brokers.connect(follower)
    life = brokers.group.nodes[follower].life
    assert life is not None
    brokers.run(1.0)
    life.environment.pause(brokers.scheduler.now + 8.0)
    brokers.ask(behind, RequestCode.LOCK_BATCH_MQ, numbered(1), body("anna"))
    brokers.ask(behind, RequestCode.UNLOCK_BATCH_MQ, numbered(2), body("anna"), oneway=True)
    brokers.run(2.0)
    behind.close()
    ask_for_it(brokers, brokers.connect(leader), judge, "anna", ext=numbered(3))
    brokers.run(12.0)
    ask_for_it(brokers, brokers.connect(leader), judge, "bert")
    brokers.run(2.0)


def lock_that_is_renewed() -> None:
    """Check that a member that renews its lock in time keeps it for longer than the first lease.

    Seeds rarely meet this: a lease lasts 9 or 18 s there, of the 20 or 40 s of a run. A single node would have to lead
    all that time. And one member would have to keep a queue, which it gives up or loses in one step of seven.
    """
    brokers = group_for_locks()
    judge = LockJudge(Counter())
    for _ in range(3):
        ask_for_it(brokers, brokers.connect(brokers.leader), judge, "anna")
        brokers.run(20.0)
    ask_for_it(brokers, brokers.connect(brokers.leader), judge, "bert")
    brokers.run(2.0)


def lock_at_a_new_leader() -> None:
    """Check that a new leader does not take away a recently renewed lock whose lease it has not seen begin.

    Seeds find this too, if a leader changes and another member asks before the owner renews.
    """
    brokers = group_for_locks()
    judge = LockJudge(Counter())
    for pause_s in (20.0, 20.0, 2.0):
        ask_for_it(brokers, brokers.connect(brokers.leader), judge, "anna")
        brokers.run(pause_s)
    heir = brokers.follower
    brokers.hand_over(heir)
    brokers.run(3.0)
    assert brokers.leader == heir
    for _ in range(5):
        ask_for_it(brokers, brokers.connect(heir), judge, "bert")
        brokers.run(4.0)


def renewal_at_a_leader_that_stood_still() -> None:
    """Check that a leader that was deposed during a pause, and does not know it, grants no renewal.

    1. A member renews its lock. The leader is paused for so long that another node leads, and gives the lock away.
    2. The member asks for a renewal over its old connection. By the clock of the old leader the lease still runs.
    3. The old leader continues, and reads that first.
    """
    brokers = group_for_locks()
    judge, old = LockJudge(Counter()), brokers.leader
    before = brokers.connect(old)
    ask_for_it(brokers, before, judge, "anna")
    brokers.run(2.0)
    life = brokers.group.nodes[old].life
    assert life is not None
    life.environment.pause(brokers.scheduler.now + 45.0)
    brokers.run(41.0)
    assert brokers.leader != old
    ask_for_it(brokers, brokers.connect(brokers.leader), judge, "bert")
    brokers.run(2.0)
    ask_for_it(brokers, before, judge, "anna", patience_s=4.0)
    brokers.run(8.0)


def lock_from_a_leader_that_is_cut_off() -> None:
    """Check that a lock that a leader has proposed without a majority is not granted.

    1. The leader is cut off from the others, and a member asks it for a lock.
    2. Another node leads, and another member asks.

    Seeds rarely meet this: most requests are renewals, or for queues of another member. A free queue must be requested
    in the second for which a leader that is cut off still believes that it leads. Then it must be requested at the next
    leader within the few seconds for which the first member believes in the lock.
    """
    brokers = group_for_locks()
    judge, old, network = LockJudge(Counter()), brokers.leader, brokers.group.network
    links = [(a, b) for a in brokers.group.nodes for b in brokers.group.nodes if a != b and old in {a, b}]
    before = brokers.connect(old)
    for link in links:
        network.block(*link)
    ask_for_it(brokers, before, judge, "anna")
    brokers.run(5.0)
    heir = next(node.name for node in brokers.group.nodes.values() if node.name != old and is_ready(brokers, node.name))
    ask_for_it(brokers, brokers.connect(heir), judge, "bert")
    brokers.run(3.0)
    for link in links:
        network.unblock(*link)
    brokers.run(3.0)


def lock_on_a_topic_that_is_deleted() -> None:
    """Check that a lock outlives its topic: its owner works on a queue of that name until its belief ends.

    No seed meets this: no client makes the topic whose queues they lock, so none deletes it.
    """
    brokers = group_for_locks()
    judge, connection = LockJudge(Counter()), brokers.connect(brokers.leader)
    fields = brokers.workload.topic_fields(LOCKED_TOPIC)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    brokers.run(1.0)
    ask_for_it(brokers, connection, judge, "anna")
    brokers.run(2.0)
    brokers.ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": LOCKED_TOPIC})
    brokers.run(2.0)
    ask_for_it(brokers, connection, judge, "bert")
    brokers.run(2.0)


def is_ready(brokers: Brokers, name: str) -> bool:
    """Return whether a node believes that it leads."""
    life = brokers.group.nodes[name].life
    return life is not None and cast(SimBroker, life.service).service.group.ready


def ask_for_it(
    brokers: Brokers,
    connection: SimConnection,
    judge: LockJudge,
    member: str,
    *,
    ext: dict[str, str] | None = None,
    patience_s: float = 1.0,
) -> None:
    """Ask for the queue, and report a grant to the judge."""
    sent_at = brokers.scheduler.now

    def answered(answer: Answer | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS and json.loads(answer.body)["lockOKMQSet"]:
            judge.granted(member, 0, brokers.scheduler.now, sent_at)

    request = RemotingCommand(RequestCode.LOCK_BATCH_MQ, ext=ext or {}, body=body(member))
    connection.call(request, patience_s, answered)


def body(member: str) -> bytes:
    """Return the body of a lock or unlock request (41, 42) for one queue."""
    queue = {"topic": LOCKED_TOPIC, "brokerName": BROKER_GROUP, "queueId": 0}
    return _json({"consumerGroup": LOCKED_GROUP, "clientId": member, "mqSet": [queue]})


def _json(fields: object) -> bytes:
    return json.dumps(fields).encode()


LOCK_SCHEDULES: Final = (
    members_that_come_and_go,
    late_release_from_an_earlier_connection,
    late_release_with_a_lower_number,
    lock_that_is_renewed,
    lock_at_a_new_leader,
    renewal_at_a_leader_that_stood_still,
    lock_from_a_leader_that_is_cut_off,
    lock_on_a_topic_that_is_deleted,
)
