"""Bodies of assignments: the queues of a topic that a client consumes (400), and how groups consume topics (401, 402).

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
    """Mode in which the members of a group get the messages of a topic: pulled or popped."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of 400: asks which queues of a topic this client consumes. `strategy_name` names how members share the
    queues.
    """

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class QueueAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """A queue and the mode in which it is consumed.

    In mode POP, queue id -1 stands for all queues of a broker group.
    """

    message_queue: MessageQueue
    mode: RequestMode


class AssignmentsBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Answer to 400. If the list is None (left out on the wire), the client keeps the queues that it has."""

    message_queue_assignments: list[QueueAssignment] | None = None


class RequestModeBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of 401: the mode in which a group consumes a topic.

    In mode POP each member pops from its own share of the queues and from the shares of the next `pop_share_queue_num`
    members. It pops from all queues if that number is not positive, or covers all members.
    """

    topic: str
    consumer_group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: Int32 = 0


class RequestModesBody(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 402: modes by topic, then by group."""

    message_request_mode_map: dict[str, dict[str, RequestModeBody]]
