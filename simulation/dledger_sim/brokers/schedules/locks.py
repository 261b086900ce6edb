"""Ordered consumers whose locks meet changes of leaders, stopped nodes, and requests that are late."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Final, cast

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_sim.brokers.connection import BROKER_GROUP, Answer, SimConnection
from dledger_sim.brokers.lockers import BELIEF_S, LOCKED_GROUP, LOCKED_TOPIC, Locker, LockJudge
from dledger_sim.brokers.schedules.brokers import Brokers
from dledger_sim.brokers.service import SimBroker

MEMBERS: Final = 3
MINUTES: Final = 6
SEEDS: Final = (1, 2, 3)
HANDOVER_S: Final = 25.0
STOPPED_S: Final = 12.0


def group_for_locks() -> Brokers:
    """A group of nodes, and of consumers, that uses locks."""
    brokers = Brokers()
    fields = {"groupName": LOCKED_GROUP}
    brokers.ask(brokers.connect(brokers.leader), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, _json(fields))
    brokers.run(1.0)
    return brokers


def members_that_come_and_go() -> None:
    """Members lock, renew, give up, reconnect and die for some minutes, while nodes lead in turn or stand still."""
    for seed in SEEDS:
        counts = come_and_go(seed, MINUTES)
        assert min(counts["lock granted"], counts["lock changed hands"]) > 0, counts


def come_and_go(seed: int, minutes: float) -> Counter[str]:
    """The same for one seed; returns what happened."""
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
    """Requests that lay in a node that stood still neither renew a lock for their channel nor end it.

    1. A member asks for a lock through a follower, and gives it up again; the follower stands still and passes both on
       only later.
    2. The member connects to the leader, and is granted the lock.
    3. The follower goes on. Another member asks.

    Seeds hardly meet it: a member asks for most of the queues again right behind each release, over the same
    connection, and connects elsewhere a second after a request that nobody answers. Within that second it would have
    to ask, to give up, and to leave that queue out when it asks again.
    """
    brokers = group_for_locks()
    judge = LockJudge(Counter())
    leader, follower = brokers.leader, brokers.follower
    behind = brokers.connect(follower)
    life = brokers.group.nodes[follower].life
    assert life is not None
    brokers.run(1.0)
    life.environment.pause(brokers.scheduler.now + 8.0)
    brokers.ask(behind, RequestCode.LOCK_BATCH_MQ, {}, body("anna"))
    brokers.ask(behind, RequestCode.UNLOCK_BATCH_MQ, {}, body("anna"), oneway=True)
    brokers.run(2.0)
    behind.close()
    ask_for_it(brokers, brokers.connect(leader), judge, "anna")
    brokers.run(12.0)
    ask_for_it(brokers, brokers.connect(leader), judge, "bert")
    brokers.run(2.0)


def lock_that_is_renewed() -> None:
    """A member that renews its lock in time keeps it for longer than the first lease lasts.

    Seeds seldom have it: a lease lasts 9 or 18 s there, of the 20 or 40 s of a run. For so long one node has to lead,
    and one member to keep a queue, which it gives up, leaves or loses by its death in one step of seven.
    """
    brokers = group_for_locks()
    judge = LockJudge(Counter())
    for _ in range(3):
        ask_for_it(brokers, brokers.connect(brokers.leader), judge, "anna")
        brokers.run(20.0)
    ask_for_it(brokers, brokers.connect(brokers.leader), judge, "bert")
    brokers.run(2.0)


def lock_at_a_new_leader() -> None:
    """A new leader does not take the lock of who renewed it a moment ago, and whose lease it has not seen begin.

    Seeds find it, too, where a leader changes and another member asks before the owner renews.
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
    """A leader that was deposed while it stood still, and does not know, grants no renewal of what it has.

    1. A member renews its lock. The leader stands still for so long that another one leads, and gives the lock away.
    2. The member asks for a renewal, over the connection that it has. By the clock of the old leader the lease runs.
    3. The old leader goes on, and reads that first.
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
    """A lock that a leader has proposed, and no majority knows, is not granted.

    1. The leader is cut off from the others, and a member asks it for a lock.
    2. Another node leads, and another member asks.

    Seeds seldom have it: most of what members ask for is a renewal, or another member's. A queue that nobody has must
    be asked for in the second for which a leader that is cut off still believes that it leads, and be asked for again
    at the next leader within the few seconds for which the first member believes in it.
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
    """A lock outlives its topic: until its belief ends its owner works on whatever queue has that name.

    Seeds cannot: nobody makes the topic whose queues they lock, and so nobody deletes it.
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
    """Whether a node leads, as it believes."""
    life = brokers.group.nodes[name].life
    return life is not None and cast(SimBroker, life.service).service.group.ready


def ask_for_it(
    brokers: Brokers, connection: SimConnection, judge: LockJudge, member: str, *, patience_s: float = 1.0
) -> None:
    """Ask for the queue; the judge is told if it is granted."""
    sent_at = brokers.scheduler.now

    def answered(answer: Answer | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS and json.loads(answer.body)["lockOKMQSet"]:
            judge.granted(member, 0, brokers.scheduler.now, sent_at + BELIEF_S)

    connection.call(RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body(member)), patience_s, answered)


def body(member: str) -> bytes:
    """The body of 41 and 42 for one queue."""
    queue = {"topic": LOCKED_TOPIC, "brokerName": BROKER_GROUP, "queueId": 0}
    return _json({"consumerGroup": LOCKED_GROUP, "clientId": member, "mqSet": [queue]})


def _json(fields: object) -> bytes:
    return json.dumps(fields).encode()


LOCK_SCHEDULES: Final = (
    members_that_come_and_go,
    late_release_from_an_earlier_connection,
    lock_that_is_renewed,
    lock_at_a_new_leader,
    renewal_at_a_leader_that_stood_still,
    lock_from_a_leader_that_is_cut_off,
    lock_on_a_topic_that_is_deleted,
)
