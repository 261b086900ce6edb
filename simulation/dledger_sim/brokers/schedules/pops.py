"""Schedules of consumers that pop: leaders that are cut off, redelivery, clocks that jump, leases, commits without
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.deliveries import PopQueue
from dledger_broker.features.pop.leasing import UNCONFIRMED_MS
from dledger_broker.features.pop.table import POPPED
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers_pop import CONFIRMS_FIELD, LEASE_FIELD, UNCONFIRMED
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from dledger_remoting.pop import deliveries_info, parse_start_offset_info, pop_retry_topic
from dledger_remoting.record import iter_records
from dledger_remoting.topics import SubscriptionGroupConfig
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import SimBroker

GROUP: Final = "CG"
KEY: Final = PopQueueKey(GROUP, TOPIC, 0)
HIDDEN_MS: Final = 20_000
HOUR_MS: Final = 3_600_000
NOTHING: Final = 210
LEASE_CLIENT: Final = "push-consumer"
LEASE_MS: Final = 5_000


class Popping:
    """Three simulated nodes, and consumers that pop."""

    def __init__(self, messages: int = 3) -> None:
        self.brokers = Brokers()
        self.group = self.brokers.group
        connection = self.brokers.connect(self.brokers.leader)
        body = encode_body(SubscriptionGroupConfig(GROUP))
        self.brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body)
        for _ in range(messages):
            self.brokers.send(connection, TOPIC)
        self.brokers.run(1.0)

    def ask_pop(self, node: str | None = None, **fields: str) -> list[Answer | None]:
        """Pop at a node. The answer will be in the returned list."""
        ext = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": str(HIDDEN_MS),
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            **fields,
        }
        connection = self.brokers.connect(node or self.brokers.leader)
        return self.brokers.ask(connection, RequestCode.POP_MESSAGE, ext)

    def pop(self, node: str | None = None, **fields: str) -> Answer:
        answers = self.ask_pop(node, **fields)
        self.brokers.run(1.0)
        (answer,) = answers
        assert answer is not None
        return answer

    def ack(self, popped: Answer, offset: int, node: str | None = None) -> list[Answer | None]:
        message = ((GROUP, TOPIC, 0), int(popped.ext["popTime"]), offset)
        self.brokers.workload.truth.pops.ack_asked.add(message)
        text = f"0 {popped.ext['popTime']} {HIDDEN_MS} 0 0 broker 0 {offset}"
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "extraInfo": text, "offset": str(offset)}
        return self.brokers.ask(self.brokers.connect(node or self.brokers.leader), RequestCode.ACK_MESSAGE, ext)

    def cut_off(self, name: str) -> None:
        """Cut a node off from the others in both directions."""
        for other in self.group.nodes.keys() - {name}:
            self.group.network.block(name, other)
            self.group.network.block(other, name)

    def ready(self, but: str) -> str:
        """Return another node that is ready as the leader."""
        nodes = self.group.nodes.items()
        return next(name for name, node in nodes if name != but and node.life and node.life.replica.is_ready)

    def living_follower(self) -> str:
        return next(name for name, node in self.group.nodes.items() if node.life and name != self.brokers.leader)

    def states(self) -> list[BrokerState]:
        """Return the states of all live nodes."""
        lives = [node.life for node in self.group.nodes.values()]
        return [cast(SimBroker, life.service).broker.state for life in lives if life is not None]

    def queues(self) -> list[PopQueue]:
        """Return the popped queue in the state of each live node that has it."""
        queues = [state.table(POPPED).queue(KEY) for state in self.states()]
        return [queue for queue in queues if queue is not None]

    def committed(self) -> list[int | None]:
        return [state.table(OFFSETS).get(*KEY) for state in self.states()]


def offsets(answer: Answer) -> list[int]:
    """Return the offsets of the messages in an answer."""
    return [record.queue_offset for record in iter_records(answer.body)]


def codes(answers: list[Answer | None]) -> list[int]:
    """Return the codes of the answers that came."""
    return [answer.code for answer in answers if answer is not None]


def pop_at_a_leader_that_is_cut_off() -> None:
    """Check that a pop is answered with messages only once the group has committed it, under any leader.

    1. A leader is cut off, and asked for messages.
    2. The others elect a leader, which gives the messages away.

    Seeds find this too, at their first pops: the answer shows messages that the log, which the judge reads, does not
    have.
    """
    popping = Popping()
    old = popping.brokers.leader
    popping.cut_off(old)
    answers = popping.ask_pop(old)
    popping.brokers.run(4.0)
    shown = [offsets(answer) for answer in answers if answer is not None and answer.code == 0]
    assert shown == [], shown
    assert offsets(popping.pop(popping.ready(but=old))) == [0, 1, 2]


def acknowledgement_that_meets_what_comes_again() -> None:
    """Check that a message that is being acknowledged does not come again, even if that takes long.

    1. The invisible time of a message is nearly over, and the followers' disks are slow.
    2. Its acknowledgement is proposed.
    3. The time is over.
    4. The followers have the acknowledgement.

    Seeds hardly meet this: they acknowledge a message as soon as they have it, and hide none for less than a second.
    The acknowledgement would have to be late by nearly that, and be on its way at the moment at which the time is over.
    """
    popping = Popping(2)
    popping.pop(maxMsgNums="1", invisibleTime="1000")
    popping.brokers.run(3.0)  # creates the topic in which messages come again
    popped = popping.pop(maxMsgNums="1", invisibleTime="5000")
    assert offsets(popped) == [1]
    popping.brokers.run(3.7)
    for name in popping.group.nodes.keys() - {popping.brokers.leader}:
        popping.brokers.slow_down_disk(name)
    answers = popping.ack(popped, 1)
    popping.brokers.run(12.0)
    assert codes(answers) == [0], answers


def message_hidden_while_all_clocks_jump() -> None:
    """Check that a delivered message stays hidden for its whole time by the leader's own clock.

    1. A message is popped for 100 s.
    2. All clocks jump an hour ahead, which is believed after a minute.

    No seed meets this: seeds set clocks wrong for 4.5 s at most. After that their judge no longer checks how long a
    message stayed hidden.
    """
    popping = Popping(1)
    popping.pop(invisibleTime="100000")
    for node in popping.group.nodes.values():
        node.wall_offset_ms = HOUR_MS
    for _ in range(9):
        popping.brokers.run(9.0)
        assert popping.pop().code == NOTHING
    popping.brokers.run(15.0)
    assert popping.pop().code == 0


def commit_in_a_popped_queue() -> None:
    """Check that a commit of a pulling consumer has no effect where its group pops, on any replica, also after a
    restart.

    Seeds find this too: one step in ten of popping consumers is such a commit.
    """
    popping = Popping()
    popping.pop()
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "3"}
    answers = popping.brokers.ask(
        popping.brokers.connect(popping.brokers.leader), RequestCode.UPDATE_CONSUMER_OFFSET, ext
    )
    popping.brokers.run(1.0)
    assert codes(answers) == [0]
    assert popping.committed() == [0, 0, 0], popping.committed()


class LeasingClient:
    """Client that has popped a message under a lease, and sends heartbeats through whichever node it is given."""

    def __init__(self, popping: Popping, node: str, length_ms: int = LEASE_MS, *, confirms: bool = False) -> None:
        self.popping = popping
        self._length_ms = length_ms
        later = {CONFIRMS_FIELD: "true"} if confirms else {}
        popped = popping.pop(node, **{LEASE_FIELD: LEASE_CLIENT, "invisibleTime": str(length_ms)}, **later)
        assert (offsets(popped), popped.ext.get(LEASE_FIELD)) == ([0], UNCONFIRMED if confirms else "true")
        places = parse_start_offset_info(popped.ext["startOffsetInfo"])
        self._deliveries = [(retry, queue_id, int(popped.ext["popTime"])) for retry, queue_id, _ in places]
        self._connections: dict[str, SimConnection] = {}

    def beat(self, node: str) -> None:
        """Send a heartbeat to a node, over one connection to each life of it."""
        connection = self._connections.get(node)
        if connection is None or not connection.is_usable:
            connection = self._connections[node] = self.popping.brokers.connect(node)
        body = encode_heartbeat(HeartbeatData(LEASE_CLIENT, [], [ConsumerData(GROUP)]))
        self.popping.brokers.ask(connection, RequestCode.HEART_BEAT, {}, body)

    def confirm(self, node: str) -> list[Answer | None]:
        """Confirm the message at a node. The answer will be in the returned list."""
        for retry, queue_id, pop_time_ms in self._deliveries:
            key = (GROUP, pop_retry_topic(GROUP, TOPIC, retry), queue_id)
            self.popping.brokers.workload.truth.pops.confirm_asked.add((key, pop_time_ms))
        ext = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "clientId": LEASE_CLIENT,
            "invisibleTime": str(self._length_ms),
            "deliveries": deliveries_info(self._deliveries),
        }
        return self.popping.brokers.ask(self.popping.brokers.connect(node), RequestCode.CONFIRM_LEASE, ext)

    def live_at(self, node: str, seconds: float) -> None:
        """Send a heartbeat every two seconds, and check that no other client gets the message."""
        until = self.popping.brokers.scheduler.now + seconds
        while self.popping.brokers.scheduler.now < until:
            self.beat(node)
            self.popping.brokers.run(1.0)
            assert self.popping.pop().code == NOTHING

    def die(self, within_s: float) -> None:
        """Send no more heartbeats, and check that another client gets the message within a time."""
        until = self.popping.brokers.scheduler.now + within_s
        while (answer := self.popping.pop()).code == NOTHING:
            assert self.popping.brokers.scheduler.now < until
        assert answer.code == 0


def leased_message_of_a_client_that_lives_and_dies() -> None:
    """Check that a leased message comes again once its client is dead, and not before.

    1. A client pops a message under a lease of 5 s, and sends heartbeats to a node that follows.
    2. The leader dies, and the client sends its heartbeats to the other node that is left.
    3. The client dies. Another client gets the message within the lease, and the wait of a new leader before it.
    """
    popping = Popping(1)
    old, follower = popping.brokers.leader, popping.brokers.follower
    client = LeasingClient(popping, follower)
    client.live_at(follower, 20.0)
    popping.group.kill(old)
    popping.brokers.run(3.0)
    client.live_at(popping.living_follower(), 40.0)
    client.die(within_s=LEASE_MS / 1000 + 3.0)


def lease_whose_leader_dies_before_the_next_heartbeat() -> None:
    """Check that a lease does not end by a change of the leader.

    1. The lease of a client is nearly over when the leader dies.
    2. The lease runs out by group time before another node leads.
    3. The client sends its next heartbeat to the new leader a few seconds later.
    """
    popping = Popping(1)
    client = LeasingClient(popping, popping.brokers.leader)
    client.beat(popping.brokers.leader)
    popping.brokers.run(LEASE_MS / 1000 - 1.0)
    popping.group.kill(popping.brokers.leader)
    popping.brokers.run(15.0)
    assert popping.pop().code == NOTHING
    client.live_at(popping.brokers.leader, 40.0)
    client.die(within_s=LEASE_MS / 1000 + 3.0)


def lease_of_a_living_client_while_all_clocks_jump() -> None:
    """Check that clocks do not end the lease of a living client.

    1. A client pops a message under a lease of 100 s.
    2. All clocks jump an hour ahead, which is believed after a minute. The next heartbeat comes later.
    """
    popping = Popping(1)
    client = LeasingClient(popping, popping.brokers.leader, 100_000)
    popping.group.clocks_jumped = True
    for node in popping.group.nodes.values():
        node.wall_offset_ms = HOUR_MS
    for _ in range(9):
        popping.brokers.run(9.0)
        assert popping.pop().code == NOTHING
    client.live_at(popping.brokers.leader, 30.0)
    client.die(within_s=110.0)


def messages_lost_with_their_proxy() -> None:
    """Check that messages come again that never reached their client, although it lives.

    1. A proxy pops for a client, and dies before the client has the answer.
    2. The client sends its heartbeats through another proxy. The messages come again within `UNCONFIRMED_MS`.
    """
    popping = Popping(1)
    client = LeasingClient(popping, popping.brokers.leader, UNCONFIRMED_MS, confirms=True)
    client.live_at(popping.brokers.follower, UNCONFIRMED_MS / 1000 - 5.0)
    until = popping.brokers.scheduler.now + 10.0
    while popping.pop().code == NOTHING:
        client.beat(popping.brokers.follower)
        assert popping.brokers.scheduler.now < until
        popping.brokers.run(1.0)


def confirmation_at_the_end_of_the_invisible_time() -> None:
    """Check that a confirmation counts from its arrival at the leader.

    1. A client confirms what it has, a moment before the invisible time is over.
    2. The leader has no majority for a while, in which the invisible time ends. It must not plan to deliver again.
    3. The leader reaches the others again. The messages stay with their client.
    """
    popping = Popping(1)
    leader = popping.brokers.leader
    popping.pop(invisibleTime="1000")
    popping.brokers.run(3.0)  # the message is in the retry topic, which must exist before it can come again at once
    client = LeasingClient(popping, leader, LEASE_MS, confirms=True)
    popping.brokers.run(LEASE_MS / 1000 - 1.1)
    for other in popping.group.nodes.keys() - {leader}:
        popping.group.network.block(other, leader)
    answers = client.confirm(leader)
    popping.brokers.run(0.6)
    for other in popping.group.nodes.keys() - {leader}:
        popping.group.network.unblock(other, leader)
    popping.brokers.run(1.0)
    assert codes(answers) == [0]
    client.live_at(leader, 20.0)
    client.die(within_s=LEASE_MS / 1000 + 3.0)


POP_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    pop_at_a_leader_that_is_cut_off,
    acknowledgement_that_meets_what_comes_again,
    message_hidden_while_all_clocks_jump,
    commit_in_a_popped_queue,
    leased_message_of_a_client_that_lives_and_dies,
    lease_whose_leader_dies_before_the_next_heartbeat,
    lease_of_a_living_client_while_all_clocks_jump,
    messages_lost_with_their_proxy,
    confirmation_at_the_end_of_the_invisible_time,
)
