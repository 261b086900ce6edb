"""Requesters, which wait for replies through one node or two, and repliers, which reply through any node.

A requester gives its request to the repliers when it sends the message. How consumers get messages is not tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import PushReplyHeader, decode_ext
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.properties import CORRELATION_ID, REPLY_TO_CLIENT, format_properties, parse_properties
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.message_bodies import encode_body, operation_of
from dledger_sim.brokers.reply_history import Asked
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

GROUP: Final = "requesters"
BEAT_SHARE: Final = 0.3
"""Share of a requester's steps in which it sends a heartbeat, often through the second of its nodes."""
DEAF_SHARE: Final = 0.05
"""Share of replies that a requester does not acknowledge, as many clients of RocketMQ do."""
UNWANTED_SHARE: Final = 0.05
"""Share of replies to clients that never existed."""
FIRST_OF_THE_LAST: Final = 60
"""Number of the first client that asks and replies at the end."""
HEARD_OF_S: Final = 1.0
PATIENCE_S: Final = 20.0
"""Time limit within which a whole group delivers a reply, in seconds.

Its nodes must learn of each other's clients by then.
"""


class Requester(Client):
    """Client that sends messages that ask for a reply, and sends heartbeats over each of its connections."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._request_count = 0
        self._second_connection: SimConnection | None = None

    def connected(self, connection: SimConnection) -> None:
        """Send a heartbeat, and receive replies."""
        connection.on_push = partial(self.replied, connection)
        self._send_heartbeat(connection)

    def _send_heartbeat(self, connection: SimConnection) -> None:
        body = encode_heartbeat(HeartbeatData(self.name, [ProducerData(GROUP)], []))
        connection.call(
            RemotingCommand(RequestCode.HEART_BEAT, body=body), self.workload.settings.timeout_s, _ignore_answer
        )

    def act(self) -> None:
        """Ask, or send a heartbeat."""
        if self.random.random() < BEAT_SHARE:
            self._send_heartbeat_somewhere()
            self.pause()
        else:
            self._send_request()

    def _send_heartbeat_somewhere(self) -> None:
        """Send a heartbeat over one of two connections. The second may lead to any node."""
        if self.random.random() < 0.5 and self._second_connection is not None and self._second_connection.is_usable:
            self._send_heartbeat(self._second_connection)
        elif self.random.random() < 0.5:
            first, self._connection = self._connection, None
            if self._second_connection is not None:
                self._second_connection.close()
            self._chosen_node, believed = self.random.choice(self.workload.group.settings.names), self._chosen_node
            self._second_connection = self._connect()  # this sends a heartbeat
            self._connection, self._chosen_node = first, believed
        elif (connection := self._connect()) is not None:
            self._send_heartbeat(connection)

    def _send_request(self) -> None:
        workload, random = self.workload, self.random
        self._request_count += 1
        asked = Asked(self.name, f"{self.name}/{self._request_count}")
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        topic = random.choice(sorted(workload.lasting))
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)
        ext["i"] = marks(asked) + ext["i"]

        def done(answer: Answer | None) -> None:
            workload.sent([operation], queue_id, answer)
            self.pause()

        if self.call(code, ext, done, body=body):
            workload.replies.ask(asked, workload.group.scheduler.now)
        else:
            workload.not_sent([operation])
            self.pause()

    def replied(self, connection: SimConnection, command: RemotingCommand) -> None:
        """Receive a reply (326), and usually acknowledge it to the node."""
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        require(command.code == code, "a requester receives replies", found=command.code)
        properties = parse_properties(decode_ext(PushReplyHeader, command.ext).properties or "")
        asked = Asked(self.name, properties.get(CORRELATION_ID, ""))
        self.workload.replies.arrived(asked, operation_of(command.body), self.workload.group.scheduler.now)
        if self.random.random() >= DEAF_SHARE:
            connection.respond(command)


class Replier(Client):
    """Client that replies to requests through its chosen node, to some of them more than once."""

    def act(self) -> None:
        """Reply to a request."""
        waiting = self.workload.replies.waiting
        if not waiting:
            self.pause()
            return
        asked = self.random.choice(waiting)
        if self.random.random() < UNWANTED_SHARE:
            asked = Asked("client-that-never-was", asked.correlation)
        if not self.reply(asked, self.pause):
            self.pause()

    def reply(self, asked: Asked, then: Callable[[], None], timeout_s: float | None = None) -> bool:
        """Send a reply, and continue after its answer or time-out. Return False if its node cannot be reached."""
        workload, number = self.workload, self.workload.next_operation()
        workload.replies.sent(asked, number, self.name, workload.group.scheduler.now)

        def done(answer: Answer | None) -> None:
            _note_answer(workload, number, answer)
            then()

        code, body = RequestCode.SEND_REPLY_MESSAGE_V2, encode_body(number, self.random.randint(0, 300))
        ext = reply_fields(asked, self.random.choice(made_topics(workload) or sorted(workload.lasting)))
        return self.call(code, ext, done, body=body, timeout_s=timeout_s)


def _note_answer(workload: Workload, number: int, answer: Answer | None) -> None:
    """Note the answer to a replier: the reply has arrived, it has not and will not, or the outcome is unknown."""
    if answer is None:
        return
    now = workload.group.scheduler.now
    is_direct = answer.seen is not None and not answer.seen.passed_on
    if answer.code == ResponseCode.SUCCESS:
        workload.replies.heard(number, now, is_direct=is_direct)
    elif is_direct and answer.ext.get("outcome") != "unknown":
        workload.replies.refused(number, answer.code, now)


def reply_fields(asked: Asked, topic: str) -> dict[str, str]:
    """Return the fields of a reply."""
    fields = {"a": "repliers", "b": topic, "c": "nothing", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    return {**fields, "i": marks(asked)}


def marks(asked: Asked) -> str:
    """Return the properties that make a message a request and that route a reply back."""
    return format_properties({CORRELATION_ID: asked.correlation, REPLY_TO_CLIENT: asked.client})


def made_topics(workload: Workload) -> list[str]:
    """Return the lasting topics that a client could create."""
    return sorted(workload.lasting & workload.truth.topics.keys())


def check_replied(group: SimGroup, workload: Workload) -> None:
    """Check that a whole group delivers a reply from every node to every node.

    A reply names a topic. If faults let no client create a topic, no reply is sent.
    """
    if not made_topics(workload):
        return
    names = sorted(group.nodes)
    for number, (here, there) in enumerate((here, there) for here in names for there in names):
        requester = _LastRequester(workload, FIRST_OF_THE_LAST + 2 * number)
        replier = _LastReplier(workload, FIRST_OF_THE_LAST + 2 * number + 1)
        workload.replies.ask(requester.asked, group.scheduler.now)
        until = group.scheduler.now + PATIENCE_S
        while not requester.has_reply:
            require(group.scheduler.now < until, "a healed group forwards replies", requester=here, replier=there)
            requester.be_known_at(here)
            group.scheduler.run_until(group.scheduler.now + HEARD_OF_S)
            replier.reply_through(there, requester.asked)
            group.scheduler.run_until(group.scheduler.now + HEARD_OF_S)


class _LastRequester(Requester):
    """Requester that waits for a single reply at one node."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.has_reply = False
        self.asked = Asked(self.name, f"{self.name}/last")

    def be_known_at(self, name: str) -> None:
        """Send a heartbeat to a node again."""
        self._chosen_node = name
        connection = self._connect()
        if connection is not None:
            self._send_heartbeat(connection)

    def replied(self, connection: SimConnection, command: RemotingCommand) -> None:
        super().replied(connection, command)
        self.has_reply = True


class _LastReplier(Replier):
    """Replier that replies through one node."""

    def reply_through(self, name: str, asked: Asked) -> None:
        """Send a reply."""
        if self._chosen_node != name and self._connection is not None:
            self._connection.close()
            self._connection = None
        self._chosen_node, self._no_forward = name, False
        self.reply(asked, _do_nothing, PATIENCE_S)


def _ignore_answer(_answer: Answer | None) -> None:
    """Ignore an answer."""


def _do_nothing() -> None:
    """Do nothing afterwards."""
