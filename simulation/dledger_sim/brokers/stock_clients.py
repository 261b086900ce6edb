"""Clients that behave as RocketMQ's own: they have a route and renew it now and then, but never after a failed send.

The producers send through the brokers of the route in turn, including write aliases, and take the next broker after a
failure. The consumers pull from the node that the last answer suggested, with the addresses of their present route.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.hosts import HostAddress
from dledger_remoting.route import MASTER_ID, TopicRouteData, is_alias
from dledger_remoting.topics import is_writable
from dledger_sim.brokers.clients import CLIENT_HOST, Client, pull_fields
from dledger_sim.brokers.connection import Answer, Done, SimConnection
from dledger_sim.brokers.name_server import alias_nodes
from dledger_sim.brokers.service import node_at
from dledger_sim.brokers.stock_sends import Place
from dledger_sim.brokers.workload import NOT_STORED, Workload

FIRST_STOCK_PORT: Final = 40_000
ROUTES_ASKED_S: Final = (1.0, 5.0, 30.0)
"""Intervals at which clients renew routes, in seconds.

They are the interval of stock clients, and shorter intervals that meet many changes.
"""
MOST_ATTEMPTS: Final = (1, 3)
"""Maximum number of attempts of a send. Some clients send asynchronously and try once."""
HASTE: Final = 0.1
"""Factor for the pause before another attempt, relative to the pause before a new operation."""


@dataclass(slots=True, eq=False)
class Send:
    """Send of a stock producer, through up to `most` places."""

    topic: str
    operations: list[int]
    code: int
    ext: dict[str, str]
    body: bytes
    most: int
    attempts: int = 0
    uncertain: bool = False
    """True if an attempt may have been stored, or may still be stored."""
    broker: str = ""
    """Broker of the last attempt."""
    outcome: str = ""
    """Outcome: ok, fail or info; empty while the send is under way."""


class StockClient(Client):
    """Client with a route, and with a separate connection to each port."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.period_s = self.random.choice(ROUTES_ASKED_S)
        self.timeout_s = workload.settings.timeout_s
        self._sockets: dict[tuple[str, int | None], SimConnection] = {}
        self._socket_count = 0
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}

    def route(self, topic: str, *, anew: bool = False) -> TopicRouteData:
        """Return this client's route of a topic. It is renewed if it is old, or with `anew`."""
        now = self.workload.group.scheduler.now
        asked, route = self._routes.get(topic, (float("-inf"), TopicRouteData()))
        if anew or now - asked >= self.period_s or not route.broker_datas:
            route = self.workload.stock.name_server.route(self.workload.group, topic)
            self._routes[topic] = now, route
        return route

    def ask(self, node: str, alias: int | None, command: RemotingCommand, done: Done, held_s: float = 0.0) -> bool:
        """Send a request to a port of a node, which may hold the request for `held_s`.

        Return False without sending if the node cannot be reached.
        """
        socket = self._get_socket(node, alias)
        if socket is None:
            return False

        def answered(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.answered(command.code, answer)
            done(answer)

        socket.call(command, self.timeout_s + held_s, answered)
        return True

    def _get_socket(self, node: str, alias: int | None) -> SimConnection | None:
        group = self.workload.group
        socket = self._sockets.get((node, alias))
        if socket is not None and socket.is_usable:
            return socket
        life = group.nodes[node].life
        if life is None or life.stopping or node in group.leaving or node in group.unreachable:
            return None
        self._socket_count += 1
        port = FIRST_STOCK_PORT + 200 * self.number + self._socket_count % 200
        socket = SimConnection(group, life, self.random, HostAddress(CLIENT_HOST, port), port)
        socket.alias = alias
        self._sockets[node, alias] = socket
        return socket


def places_in(route: TopicRouteData) -> Iterator[Place]:
    """Yield the places to which a route lets a producer send: queues of brokers with an address under id 0."""
    nodes = {
        broker.broker_name: node_at(broker.broker_addrs[MASTER_ID])
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    aliases = alias_nodes(route)
    for queues in route.queue_datas:
        name = queues.broker_name
        if is_writable(queues.perm) and name in nodes:
            alias = int(aliases[name][1:]) if is_alias(name) else None
            for queue_id in range(queues.write_queue_nums):
                yield Place(name, nodes[name], queue_id, alias)


class StockProducer(StockClient):
    """Producer to lasting topics.

    It sends to the next place of the route each time, and to another broker after a failure.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._next_turn = number

    def act(self) -> None:
        """Send to any lasting topic."""
        random = self.random
        self.begin(random.choice(sorted(self.workload.lasting)), random.choice(MOST_ATTEMPTS))

    def begin(self, topic: str, most: int) -> Send:
        """Send to a topic, through up to `most` places of the present route.

        The route is renewed first if that is due.
        """
        workload, random, settings = self.workload, self.random, self.workload.settings
        many = random.random() < settings.batch_share
        count = random.randint(2, settings.most_in_batch) if many else 1
        operations = [workload.next_operation() for _ in range(count)]
        code, ext, body = workload.make_send(topic, 0, operations, batch=many)
        send = Send(topic, operations, code, ext, body, most)
        self.route(topic)
        self._attempt(send)
        return send

    def _attempt(self, send: Send) -> None:
        workload = self.workload
        place = self._choose_place(send)
        if place is None:
            self._handle_failure(send)
            return
        send.broker = place.broker
        send.attempts += 1
        if send.attempts > 1 or place.alias is not None:
            workload.truth.sent_again.update(send.operations)
        command = RemotingCommand(send.code, ext=send.ext | {"e": str(place.queue_id)}, body=send.body)
        if self.ask(place.node, place.alias, command, partial(self._handle_answer, send, place)):
            workload.stock.attempts[send.operations[0]] += 1
        else:
            self._handle_failure(send)

    def _choose_place(self, send: Send) -> Place | None:
        """Return the next place of a broker other than the last.

        The route is still the route from before the failure.
        """
        places = [place for place in places_in(self._routes[send.topic][1]) if place.broker != send.broker]
        self._next_turn += 1
        return places[self._next_turn % len(places)] if places else None

    def _handle_answer(self, send: Send, place: Place, answer: Answer | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            send.uncertain |= answer is None or answer.code not in NOT_STORED
            self._handle_failure(send)
            return
        workload = self.workload
        queue_id = workload.stock.acknowledged(place, workload.settings.queues, answer)
        workload.sent(send.operations, queue_id, answer)
        workload.counts["ok through an alias"] += place.alias is not None
        self._finish_send(send, "ok")

    def _handle_failure(self, send: Send) -> None:
        if send.attempts < send.most and send.broker:
            self.workload.counts["sent to another broker"] += 1
            self.workload.group.scheduler.after(HASTE * self.workload.settings.think_s, partial(self._attempt, send))
        elif send.uncertain:
            self.workload.counts["info"] += len(send.operations)
            self._finish_send(send, "info")
        else:
            self.workload.counts["fail"] += len(send.operations)
            self.workload.not_sent(send.operations)
            self._finish_send(send, "fail")

    def _finish_send(self, send: Send, outcome: str) -> None:
        send.outcome = outcome
        self.pause()


@dataclass(slots=True)
class Reading:
    """Consumer's offset in a queue, and the broker id for its next pull."""

    topic: str
    queue_id: int
    offset: int = 0
    broker_id: int = MASTER_ID
    is_at_end: bool = False


class StockConsumer(StockClient):
    """Consumer of all queues of a lasting topic. It reads each where the last answer suggested."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        topic = self.random.choice(sorted(workload.lasting))
        self.readings = [Reading(topic, queue_id) for queue_id in range(workload.settings.queues)]

    def act(self) -> None:
        """Pull from any of its queues."""
        random, settings = self.random, self.workload.settings
        poll_s = random.uniform(0.2, 2.0) if random.random() < settings.long_poll_share else 0.0
        self.pull(random.choice(self.readings), poll_s)

    def addresses(self, reading: Reading) -> dict[int, str]:
        """Return the addresses of the group's nodes by broker id, from the present route."""
        brokers = self.route(reading.topic).broker_datas
        return next((broker.broker_addrs for broker in brokers if not is_alias(broker.broker_name)), {})

    def node_of(self, reading: Reading) -> str | None:
        """Return the node to ask for a queue, from the present route: of the suggested id, of the next id, or any."""
        addresses = self.addresses(reading)
        address = addresses.get(reading.broker_id) or addresses.get(reading.broker_id + 1)
        return node_at(address or next(iter(addresses.values()))) if addresses else None

    def pull(self, reading: Reading, poll_s: float = 0.0) -> None:
        """Pull the next messages of a queue."""
        node, offset = self.node_of(reading), reading.offset

        def done(answer: Answer | None) -> None:
            if answer is not None:
                self._handle_pulled(reading, offset, answer)
            self.pause()

        ext = {"consumerGroup": self.name, "topic": reading.topic, "queueId": str(reading.queue_id)}
        ext |= pull_fields(offset, self.random.choice((4, 32)), poll_s=poll_s)
        command = RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext)
        if node is None or not self.ask(node, None, command, done, poll_s):
            self.pause()

    def _handle_pulled(self, reading: Reading, offset: int, answer: Answer) -> None:
        after = self.workload.pulled(reading.topic, reading.queue_id, offset, answer)
        reading.is_at_end = answer.code == ResponseCode.PULL_NOT_FOUND
        if after is None:
            return
        reading.offset = after
        suggested = int(answer.ext["suggestWhichBrokerId"])
        self.workload.counts["consumer sent to a follower"] += suggested != MASTER_ID
        reading.broker_id = suggested
