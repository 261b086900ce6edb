"""Clients as RocketMQ's own are: they know a route, ask for another one now and then, and never because a send failed.

The producers send through the brokers of the route in turn, write aliases among them, and take the next one when a send
fails. The consumers pull where the last answer said, by the addresses of the route that they have.
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
"""How often a client asks for routes: as often as stock clients do, or so often that it meets many changes."""
MOST_ATTEMPTS: Final = (1, 3)
"""Asynchronous sends of some clients are tried once."""
HASTE: Final = 0.1
"""What failed is tried again so much faster than something else begins."""


@dataclass(slots=True, eq=False)
class Send:
    """One send of a stock producer, through up to `most` places."""

    topic: str
    operations: list[int]
    code: int
    ext: dict[str, str]
    body: bytes
    most: int
    attempts: int = 0
    uncertain: bool = False
    """An attempt may have been stored, or may still be."""
    broker: str = ""
    """Where it was sent last."""
    outcome: str = ""
    """ok, fail or info, once it is over."""


class StockClient(Client):
    """A client that goes by a route, over connections of its own to each port."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.period_s = self.random.choice(ROUTES_ASKED_S)
        self.timeout_s = workload.settings.timeout_s
        self._sockets: dict[tuple[str, int | None], SimConnection] = {}
        self._opened = 0
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}

    def route(self, topic: str, *, anew: bool = False) -> TopicRouteData:
        """What this client knows of a topic, asked for `anew` or if that is long ago."""
        now = self.workload.group.scheduler.now
        asked, route = self._routes.get(topic, (float("-inf"), TopicRouteData()))
        if anew or now - asked >= self.period_s or not route.broker_datas:
            route = self.workload.stock.name_server.route(self.workload.group, topic)
            self._routes[topic] = now, route
        return route

    def ask(self, node: str, alias: int | None, command: RemotingCommand, done: Done, held_s: float = 0.0) -> bool:
        """Send a request, which may be held for so long, to a port of a node; False, and nothing was sent, if it cannot
        be reached.
        """
        socket = self._socket(node, alias)
        if socket is None:
            return False

        def answered(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.answered(command.code, answer)
            done(answer)

        socket.call(command, self.timeout_s + held_s, answered)
        return True

    def _socket(self, node: str, alias: int | None) -> SimConnection | None:
        group = self.workload.group
        socket = self._sockets.get((node, alias))
        if socket is not None and socket.is_usable:
            return socket
        life = group.nodes[node].life
        if life is None or life.stopping or node in group.leaving or node in group.unreachable:
            return None
        self._opened += 1
        port = FIRST_STOCK_PORT + 200 * self.number + self._opened % 200
        socket = SimConnection(group, life, self.random, HostAddress(CLIENT_HOST, port), port)
        socket.alias = alias
        self._sockets[node, alias] = socket
        return socket


def places_in(route: TopicRouteData) -> Iterator[Place]:
    """Where a route lets a producer send to: brokers with an address under id 0."""
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
    """Sends to lasting topics, each time to the next place of the route, after a failure to one of another broker."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._turn = number

    def act(self) -> None:
        """Send."""
        random = self.random
        self.begin(random.choice(sorted(self.workload.lasting)), random.choice(MOST_ATTEMPTS))

    def begin(self, topic: str, most: int) -> Send:
        """Send to a topic, through up to `most` places of the route that is known, or renewed if that is due."""
        workload, random, settings = self.workload, self.random, self.workload.settings
        many = random.random() < settings.batch_share
        count = random.randint(2, settings.most_in_batch) if many else 1
        operations = [workload.next_operation() for _ in range(count)]
        code, ext, body = workload.make_send(topic, 0, operations, batch=many)
        send = Send(topic, operations, code, ext, body, most)
        self.route(topic)
        self._try(send)
        return send

    def _try(self, send: Send) -> None:
        workload = self.workload
        place = self._next_place(send)
        if place is None:
            self._failed(send)
            return
        send.broker = place.broker
        send.attempts += 1
        if send.attempts > 1 or place.alias is not None:
            workload.truth.sent_again.update(send.operations)
        command = RemotingCommand(send.code, ext=send.ext | {"e": str(place.queue_id)}, body=send.body)
        if self.ask(place.node, place.alias, command, partial(self._answered, send, place)):
            workload.stock.attempts[send.operations[0]] += 1
        else:
            self._failed(send)

    def _next_place(self, send: Send) -> Place | None:
        """The next one of another broker than the last; the route is the one that was known before the failure."""
        places = [place for place in places_in(self._routes[send.topic][1]) if place.broker != send.broker]
        self._turn += 1
        return places[self._turn % len(places)] if places else None

    def _answered(self, send: Send, place: Place, answer: Answer | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            send.uncertain |= answer is None or answer.code not in NOT_STORED
            self._failed(send)
            return
        workload = self.workload
        queue_id = workload.stock.acknowledged(place, workload.settings.queues, answer)
        workload.sent(send.operations, queue_id, answer)
        workload.counts["ok through an alias"] += place.alias is not None
        self._end(send, "ok")

    def _failed(self, send: Send) -> None:
        if send.attempts < send.most and send.broker:
            self.workload.counts["sent to another broker"] += 1
            self.workload.group.scheduler.after(HASTE * self.workload.settings.think_s, partial(self._try, send))
        elif send.uncertain:
            self.workload.counts["info"] += len(send.operations)
            self._end(send, "info")
        else:
            self.workload.counts["fail"] += len(send.operations)
            self.workload.not_sent(send.operations)
            self._end(send, "fail")

    def _end(self, send: Send, outcome: str) -> None:
        send.outcome = outcome
        self.pause()


@dataclass(slots=True)
class Reading:
    """Where a consumer is in one queue, and the broker id at which it is to pull next."""

    topic: str
    queue_id: int
    offset: int = 0
    broker_id: int = MASTER_ID
    is_at_end: bool = False


class StockConsumer(StockClient):
    """Reads all queues of a lasting topic, each where the last answer said."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        topic = self.random.choice(sorted(workload.lasting))
        self.readings = [Reading(topic, queue_id) for queue_id in range(workload.settings.queues)]

    def act(self) -> None:
        """Pull from one of them."""
        random, settings = self.random, self.workload.settings
        poll_s = random.uniform(0.2, 2.0) if random.random() < settings.long_poll_share else 0.0
        self.pull(random.choice(self.readings), poll_s)

    def addresses(self, reading: Reading) -> dict[int, str]:
        """The addresses of the group's nodes by broker id, by the route that is known."""
        brokers = self.route(reading.topic).broker_datas
        return next((broker.broker_addrs for broker in brokers if not is_alias(broker.broker_name)), {})

    def node_of(self, reading: Reading) -> str | None:
        """The node that is asked for a queue, by the route that is known: that of the id, or the one behind it."""
        addresses = self.addresses(reading)
        address = addresses.get(reading.broker_id) or addresses.get(reading.broker_id + 1)
        return node_at(address or next(iter(addresses.values()))) if addresses else None

    def pull(self, reading: Reading, poll_s: float = 0.0) -> None:
        """Ask for what comes next in a queue."""
        node, offset = self.node_of(reading), reading.offset

        def done(answer: Answer | None) -> None:
            if answer is not None:
                self._pulled(reading, offset, answer)
            self.pause()

        ext = {"consumerGroup": self.name, "topic": reading.topic, "queueId": str(reading.queue_id)}
        ext |= pull_fields(offset, self.random.choice((4, 32)), poll_s=poll_s)
        command = RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext)
        if node is None or not self.ask(node, None, command, done, poll_s):
            self.pause()

    def _pulled(self, reading: Reading, offset: int, answer: Answer) -> None:
        after = self.workload.pulled(reading.topic, reading.queue_id, offset, answer)
        reading.is_at_end = answer.code == ResponseCode.PULL_NOT_FOUND
        if after is None:
            return
        reading.offset = after
        suggested = int(answer.ext["suggestWhichBrokerId"])
        self.workload.counts["consumer sent to a follower"] += suggested != MASTER_ID
        reading.broker_id = suggested
