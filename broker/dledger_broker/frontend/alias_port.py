"""The alias port of a node: answers like the node's own port, with some exceptions.

The route of a topic with write aliases lists, beside the group, one broker for each node except the leader. A producer
whose leader is gone finds a live node there within its own retries. That node forwards a send, and waits for an
election.

Tools and consumers find these brokers in routes, too. Requests for a queue's own broker are refused here. Figures that
are added up over all brokers of a route are empty or missing here, so that nothing counts twice (`answer_of`).
Everything else is answered as by the node's own port. Counts of this node's own work are included, because they are
right when added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from dledger_broker.features.statistics.counting import TOPIC_PUT_NUMS
from dledger_broker.kernel.requests import Request
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import encode_binary_header, encode_json_header
from dledger_remoting.consumers import encode_consume_stats, encode_groups_consume_stats
from dledger_remoting.errors import QueryNotFound, RemotingError, ServerError, TopicNotExist
from dledger_remoting.frame import SerializeType
from dledger_remoting.headers_send import WRITE_ALIAS_FIELD
from dledger_remoting.resets import encode_reset
from dledger_remoting.statistics import ConsumeTimeSpans, encode_topic_stats

SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


def _refuse(error: RemotingError, request: Request) -> None:
    request.fail(error)


def _answer(body: bytes, request: Request) -> None:
    request.respond(body=body)


_NO_QUEUES: Final = TopicNotExist("a write alias has no queues to read: pull from the broker group")
_NO_MESSAGES: Final = QueryNotFound("a write alias holds no messages: ask the broker group")
_NO_COUNTS: Final = ServerError("a write alias does not count the messages of a topic: ask the broker group")

ANSWERS: Final[Mapping[int, Callable[[Request], None]]] = {
    RequestCode.PULL_MESSAGE: partial(_refuse, _NO_QUEUES),
    RequestCode.LITE_PULL_MESSAGE: partial(_refuse, _NO_QUEUES),
    RequestCode.QUERY_MESSAGE: partial(_refuse, _NO_MESSAGES),
    RequestCode.GET_TOPIC_STATS_INFO: partial(_answer, encode_topic_stats({}, 0.0)),
    RequestCode.GET_CONSUME_STATS: partial(_answer, encode_consume_stats({})),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: partial(_answer, encode_reset({})),
    RequestCode.QUERY_CONSUME_TIME_SPAN: partial(_answer, encode_body(ConsumeTimeSpans([]))),
    RequestCode.GET_BROKER_CONSUME_STATS: partial(_answer, encode_groups_consume_stats({}, "")),
}
"""The answers that an alias port gives to these codes by itself."""


def answer_of(request: Request) -> Callable[[Request], None] | None:
    """Return the answer that an alias port gives by itself, None if it answers like the node's own port.

    Every node of a group counts all messages sent to a topic. So each of them would report the total.
    """
    if request.code == RequestCode.VIEW_BROKER_STATS_DATA and request.ext.get("statsName") == TOPIC_PUT_NUMS:
        return partial(_refuse, _NO_COUNTS)
    return ANSWERS.get(request.code)


def mark_send(request: Request, number: int) -> None:
    """Add to a send which alias took it. The leader chooses the queue, because only it knows for sure how many there
    are.
    """
    command = request.decoded()
    command = msgspec.structs.replace(command, ext={**command.ext, WRITE_ALIAS_FIELD: str(number)})
    request.command = command
    binary = request.serialize_type == SerializeType.ROCKETMQ
    request.header = encode_binary_header(command) if binary else encode_json_header(command)
