"""Requesters, who wait for replies through one node or two, and repliers, who send them through any.

A requester hands its request to the repliers when it sends the message: how consumers get messages is another matter.
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
from dledger_sim.brokers.reply_judge import Asked, ReplyJudge
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

GROUP: Final = "requesters"
BEAT_SHARE: Final = 0.3
"""Share of a requester's steps in which it says that it is there, through the other of its nodes as often as not."""
DEAF_SHARE: Final = 0.05
"""Share of replies that a requester does not say it has got, as many clients of RocketMQ."""
UNWANTED_SHARE: Final = 0.05
"""Share of replies to clients that never were there."""
FIRST_OF_THE_LAST: Final = 60
"""Number of the first client that asks and replies at the end."""
HEARD_OF_S: Final = 1.0
PATIENCE_S: Final = 20.0
"""A whole group passes a reply on within so long: its nodes hear of a client, and of each other's."""


class Requester(Client):
    """Sends messages that ask for a reply, and says over each of its connections that it is there."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._asked = 0
        self._second: SimConnection | None = None

    def connected(self, connection: SimConnection) -> None:
        """Be known, and hear replies."""
        connection.on_push = partial(self.replied, connection)
        self._beat(connection)

    def _beat(self, connection: SimConnection) -> None:
        body = encode_heartbeat(HeartbeatData(self.name, [ProducerData(GROUP)], []))
        connection.call(RemotingCommand(RequestCode.HEART_BEAT, body=body), self.workload.settings.timeout_s, _nothing)

    def act(self) -> None:
        """Ask, or say that it is there."""
        if self.random.random() < BEAT_SHARE:
            self._beat_somewhere()
            self.pause()
        else:
            self._ask()

    def _beat_somewhere(self) -> None:
        """Say so over one of two connections, of which the second may lead to any node."""
        if self.random.random() < 0.5 and self._second is not None and self._second.is_usable:
            self._beat(self._second)
        elif self.random.random() < 0.5:
            first, self._connection = self._connection, None
            if self._second is not None:
                self._second.close()
            self._believed, believed = self.random.choice(self.workload.group.settings.names), self._believed
            self._second = self._connect()  # says so itself
            self._connection, self._believed = first, believed
        elif (connection := self._connect()) is not None:
            self._beat(connection)

    def _ask(self) -> None:
        workload, random = self.workload, self.random
        self._asked += 1
        asked = Asked(self.name, f"{self.name}/{self._asked}")
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        topic = random.choice(sorted(workload.lasting))
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)
        ext["i"] = marks(asked) + ext["i"]

        def done(answer: Answer | None) -> None:
            workload.sent([operation], queue_id, answer)
            self.pause()

        if self.call(code, ext, done, body=body):
            workload.replies.ask(asked)
        else:
            workload.not_sent([operation])
            self.pause()

    def replied(self, connection: SimConnection, command: RemotingCommand) -> None:
        """326: a reply; as a rule the node hears that it has come."""
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        require(command.code == code, "a requester is told replies", found=command.code)
        properties = parse_properties(decode_ext(PushReplyHeader, command.ext).properties or "")
        asked = Asked(self.name, properties.get(CORRELATION_ID, ""))
        self.workload.replies.arrived(asked, operation_of(command.body))
        if self.random.random() >= DEAF_SHARE:
            connection.respond(command)


class Replier(Client):
    """Replies to requests, more than once to some, through the node it believes in."""

    def act(self) -> None:
        """Reply."""
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
        """Send a reply, and go on once it is answered, or not; False if its node cannot be reached."""
        workload, judge, number = self.workload, self.workload.replies, self.workload.next_operation()
        judge.sent(asked, number)

        def done(answer: Answer | None) -> None:
            _judge(judge, number, answer)
            then()

        code, body = RequestCode.SEND_REPLY_MESSAGE_V2, encode_body(number, self.random.randint(0, 300))
        ext = reply_fields(asked, self.random.choice(sorted(workload.lasting)))
        return self.call(code, ext, done, body=body, timeout_s=timeout_s)


def _judge(judge: ReplyJudge, number: int, answer: Answer | None) -> None:
    """What a replier was told: that its reply has come, that it has not and will not, or neither."""
    if answer is None:
        return
    is_direct = answer.seen is not None and not answer.seen.passed_on
    if answer.code == ResponseCode.SUCCESS:
        judge.heard(number, is_direct=is_direct)
    elif is_direct and answer.ext.get("outcome") != "unknown":
        judge.refused(number, answer.code)


def reply_fields(asked: Asked, topic: str) -> dict[str, str]:
    """The fields of a reply."""
    fields = {"a": "repliers", "b": topic, "c": "nothing", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    return {**fields, "i": marks(asked)}


def marks(asked: Asked) -> str:
    """The properties that make a message a request, and that bring a reply back."""
    return format_properties({CORRELATION_ID: asked.correlation, REPLY_TO_CLIENT: asked.client})


def check_replied(group: SimGroup, workload: Workload) -> None:
    """A whole group passes a reply on from every node to every node."""
    names = sorted(group.nodes)
    for number, (here, there) in enumerate((here, there) for here in names for there in names):
        requester = _LastRequester(workload, FIRST_OF_THE_LAST + 2 * number)
        replier = _LastReplier(workload, FIRST_OF_THE_LAST + 2 * number + 1)
        workload.replies.ask(requester.asked)
        until = group.scheduler.now + PATIENCE_S
        while not requester.has_reply:
            require(group.scheduler.now < until, "a whole group passes replies on", requester=here, replier=there)
            requester.be_known_at(here)
            group.scheduler.run_until(group.scheduler.now + HEARD_OF_S)
            replier.reply_through(there, requester.asked)
            group.scheduler.run_until(group.scheduler.now + HEARD_OF_S)


class _LastRequester(Requester):
    """Waits for one reply, at one node."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.has_reply = False
        self.asked = Asked(self.name, f"{self.name}/last")

    def be_known_at(self, name: str) -> None:
        """Say again that it is there."""
        self._believed = name
        connection = self._connect()
        if connection is not None:
            self._beat(connection)

    def replied(self, connection: SimConnection, command: RemotingCommand) -> None:
        """See `Requester.replied`."""
        super().replied(connection, command)
        self.has_reply = True


class _LastReplier(Replier):
    """Replies through one node."""

    def reply_through(self, name: str, asked: Asked) -> None:
        """Send a reply."""
        if self._believed != name and self._connection is not None:
            self._connection.close()
            self._connection = None
        self._believed, self._no_forward = name, False
        self.reply(asked, _nothing_more, PATIENCE_S)


def _nothing(_answer: Answer | None) -> None:
    """For whoever waits for no answer."""


def _nothing_more() -> None:
    """For whoever does nothing after it."""
