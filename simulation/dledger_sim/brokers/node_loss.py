"""Judge of clients with an old route: a whole group loses a node, and the clients continue.

1. Consumers that follow suggestions settle. Producers and consumers learn the route of the whole group. Each queue has
  a pull that waits.
2. A node is killed, often the leader. No client asks for a route.
3. Each send finds a node within its own retries, unless votes are split for longer than a node holds a request. A
  consumer that does not read from the dead node is not sent there, and reaches the end of its queue.
4. Clients ask for routes again. All consumers reach the end, and no consumer is sent to the dead node any more.
"""

from __future__ import annotations

from typing import Final

from dledger_remoting.route import MASTER_ID
from dledger_sim.brokers.name_server import alias_nodes
from dledger_sim.brokers.service import node_at
from dledger_sim.brokers.stock_clients import Reading, Send, StockConsumer, StockProducer
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

FIRST_OF_THE_LAST: Final = 40
SETTLED_S: Final = 65.0
"""Time in which clients settle, in seconds.

It exceeds the time for which a change of leadership counts, and the wait of a follower before it offers to serve.
"""
KNOWN_S: Final = 6.0
"""Time in seconds within which a live leader notices a dead node, and a dead leader has a successor."""
POLL_S: Final = 8.0
PATIENCE_S: Final = 20.0
STEP_S: Final = 0.1
TIMEOUT_S: Final = 3.0
ATTEMPTS: Final = 3
"""Number of attempts of a send, as in Java's producer."""


def check_node_loss(group: SimGroup, workload: Workload) -> None:
    """Raise `Violation` unless the clients continue.

    A group with rotten bytes is skipped: it may lose another node by the rot. A group that faults kept down all the
    time has no topics.
    """
    if group.rotten:
        return
    if not workload.lasting <= workload.truth.topics.keys():
        workload.counts["topics never made"] += 1
        return
    producer = _LastProducer(workload, FIRST_OF_THE_LAST)
    consumers = [_LastConsumer(workload, FIRST_OF_THE_LAST + 1), _LastConsumer(workload, FIRST_OF_THE_LAST + 2)]
    group.scheduler.run_until(group.scheduler.now + SETTLED_S)
    _read_to_the_end(group, [(one, reading) for one in consumers for reading in one.readings])
    _check_route(group, producer, workload)
    leader = group.leader
    victim = workload.random.choice(sorted(group.nodes))
    if leader is not None and workload.random.random() < 0.5:
        victim = leader.name
    workload.counts["leader lost at the end"] += leader is not None and victim == leader.name
    lost_ids = {one.id_of(victim) for one in consumers} - {None, MASTER_ID}
    for one in consumers:
        for reading in one.readings:
            one.pull(reading, POLL_S)
    group.scheduler.run_until(group.scheduler.now + STEP_S)
    elsewhere = [(one, reading) for one in consumers for reading in one.readings if one.node_of(reading) != victim]
    if workload.brokers.follower_reads == "lagging":
        elsewhere = []  # a consumer that falls behind now may be sent to a node that has just died
    workload.counts["queue not read from the lost node"] += len(elsewhere)
    group.kept_down.add(victim)
    group.kill(victim)
    known_at = group.scheduler.now + KNOWN_S
    _send(group, workload, producer)
    _read_to_the_end(group, elsewhere, victim)
    group.scheduler.run_until(max(group.scheduler.now, known_at))
    for one in consumers:
        one.forget_routes()
    _read_to_the_end(group, [(one, reading) for one in consumers for reading in one.readings])
    for one in consumers:
        for reading in one.readings:
            require(reading.broker_id not in lost_ids, "no reader is sent to a node that is dead", reading=reading)
    group.kept_down.clear()
    group.start(victim)


class _LastProducer(StockProducer):
    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.period_s = float("inf")
        self.timeout_s = TIMEOUT_S


class _LastConsumer(StockConsumer):
    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.period_s = float("inf")
        self.timeout_s = TIMEOUT_S

    def forget_routes(self) -> None:
        """Drop the routes, so that the consumer asks again."""
        self._routes.clear()

    def id_of(self, node: str) -> int | None:
        """Return the broker id under which the route lists a node."""
        ids = (number for number, address in self.addresses(self.readings[0]).items() if node_at(address) == node)
        return next(ids, None)


def _check_route(group: SimGroup, producer: StockProducer, workload: Workload) -> None:
    """Check that a whole group's route lists every node: one as the leader, the others as write aliases."""
    for topic in sorted(workload.lasting):
        route = producer.route(topic)
        aliases = set(alias_nodes(route).values())
        leaders = {broker.broker_name for broker in route.broker_datas} - alias_nodes(route).keys()
        require(
            len(leaders) == 1 and len(aliases) == len(group.nodes) - 1,
            "a route lists a write alias for every node but the leader",
            topic=topic,
            route=route,
        )


def _send(group: SimGroup, workload: Workload, producer: StockProducer) -> None:
    """Send until every place of the route has been the first choice.

    A single send may fail, because votes may be split once.
    """
    left = [topic for topic in sorted(workload.lasting) for _ in range(workload.settings.queues + len(group.nodes))]
    may_fail = True
    while left:
        began, term = group.scheduler.now, _find_highest_term(group)
        send = producer.begin(left[-1], ATTEMPTS)
        had_leader = _wait_for_send(group, send)
        is_split = not had_leader and _find_highest_term(group) - term >= 2  # two elections at least
        held = group.scheduler.now - began >= workload.brokers.forward_hold_ms / 1000
        if send.outcome != "ok" and may_fail and is_split and held:
            workload.counts["votes split for as long as a node waits"] += 1
            may_fail = False
            _wait_for_leader(group)
            continue
        require(send.outcome == "ok", "a send finds a node inside its own retries", send=send)
        left.pop()


def _find_highest_term(group: SimGroup) -> int:
    return max(node.replica.engine.term for node in group.running if node.replica)


def _wait_for_send(group: SimGroup, send: Send) -> bool:
    """Wait until a send has ended. Return whether the group had a leader during the wait."""
    until, had_leader = group.scheduler.now + PATIENCE_S, False
    while not send.outcome:
        require(group.scheduler.now < until, "every send ends", send=send)
        had_leader |= group.leader is not None
        group.scheduler.run_until(group.scheduler.now + STEP_S)
    return had_leader


def _wait_for_leader(group: SimGroup) -> None:
    until = group.scheduler.now + PATIENCE_S
    while group.leader is None:
        require(group.scheduler.now < until, "two nodes of three elect a leader")
        group.scheduler.run_until(group.scheduler.now + STEP_S)


def _read_to_the_end(group: SimGroup, readings: list[tuple[_LastConsumer, Reading]], victim: str | None = None) -> None:
    """Pull until each queue has nothing more. No consumer may pull from the victim."""
    until = group.scheduler.now + PATIENCE_S
    for _, reading in readings:
        reading.is_at_end = False
    while left := [(one, reading) for one, reading in readings if not reading.is_at_end]:
        for one, reading in left:
            require(
                victim is None or one.node_of(reading) != victim,
                "a reader of a live node is not sent to the dead node",
                reading=reading,
                victim=victim,
            )
            one.pull(reading)
        require(
            group.scheduler.now < until,
            "a consumer that follows suggestions of nodes reaches the end",
            left=[reading for _, reading in left],
        )
        group.scheduler.run_until(group.scheduler.now + STEP_S)
