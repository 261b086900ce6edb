"""Bodies of assignments: which queues of a topic a client is to consume (400), and how groups consume (401, 402).

Format: RocketMQ's `QueryAssignmentRequestBody`, `QueryAssignmentResponseBody`, `SetMessageRequestModeRequestBody` and
`MessageRequestModeSerializeWrapper`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .heartbeat import MessageModel
from .integers import Int32
from .topics import MessageQueue


class RequestMode(StrEnum):
    """How members of a group get the messages of a topic."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentBody(msgspec.Struct, frozen=True, rename="camel"):
    """Which queues of a topic shall this client consume? `strategy_name` says how members share them."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class QueueAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """A queue, and how it is consumed; in mode POP queue id -1 stands for all queues of a broker group."""

    message_queue: MessageQueue
    mode: RequestMode


class AssignmentsBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer to 400. None, which is left out: the client goes on with what it has."""

    message_queue_assignments: list[QueueAssignment] | None = None


class RequestModeBody(msgspec.Struct, frozen=True, rename="camel"):
    """How a group consumes a topic (401). In mode POP each member pops its own share of the queues, and those of the
    next `pop_share_queue_num` members; all queues if that is not positive, or means all members.
    """

    topic: str
    consumer_group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: Int32 = 0


class RequestModesBody(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to 402: by topic, then by group."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]]
