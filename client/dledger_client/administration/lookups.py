"""Lookups of single messages, by offset message ids and by keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import QueryMessageHeader, ViewMessageHeader, encode_ext
from dledger_remoting.headers_query import UNIQUE_KEY_QUERY_FIELD
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.route import BrokerData

from ..cluster.core import check_response
from ..errors import InvalidArgumentError, NoBrokerError
from ..messages import ReceivedMessage, messages_in
from .cluster_calls import ClusterCalls, absence

MAX_TIMESTAMP_MS: Final = 2**63 - 1
MAX_MESSAGES_BY_KEY: Final = 64
"""Maximum number of messages with a key that a broker returns, even if it is asked for more."""

_NOT_FOUND_CODES: Final = frozenset({int(ResponseCode.QUERY_NOT_FOUND)})
_NO_SUCH_RECORD_CODES: Final = frozenset({int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.QUERY_NOT_FOUND)})
_NO_SUCH_RECORD: Final = "can not find message"
"""Beginning of a broker's remark if no record has the position. The same code says that a record cannot be read."""


async def message_by_id(
    calls: ClusterCalls, offset_message_id: str, groups: Mapping[str, BrokerData], *, keep_unreadable: bool
) -> ReceivedMessage | None:
    """Return the message with this offset message id, or None.

    Raises `InvalidArgumentError` if the id is malformed. Raises `NoBrokerError` if the message may be on a group of
    which no node is registered.
    """
    try:
        host, physical_offset = parse_offset_message_id(offset_message_id)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error
    names = [name for name, group in groups.items() if str(host) in group.broker_addrs.values()] or list(groups)
    ext = encode_ext(ViewMessageHeader(offset=physical_offset))
    absent = [name for name in names if not groups[name].broker_addrs]
    for name in await calls.group_names([name for name in names if name not in absent]):
        answers = await calls.ask_leaders([name], RequestCode.VIEW_MESSAGE_BY_ID, ext, accept=_NO_SUCH_RECORD_CODES)
        answer = answers[name]
        if answer.code == ResponseCode.SYSTEM_ERROR and not (answer.remark or "").startswith(_NO_SUCH_RECORD):
            check_response(answer)
        messages = messages_in(answer, name, keep_unreadable=keep_unreadable)
        if messages and messages[0].offset_message_id == offset_message_id.upper():
            return messages[0]
    if absent:
        raise NoBrokerError(absence(absent))
    return None


async def messages_by_key(
    calls: ClusterCalls,
    broker_groups: Iterable[str],
    header: QueryMessageHeader,
    *,
    unique: bool,
    keep_unreadable: bool,
) -> list[ReceivedMessage]:
    """Return the newest `max_num` messages of a topic with a key, or with a unique key if `unique`, oldest first."""
    ext = encode_ext(header) | ({UNIQUE_KEY_QUERY_FIELD: "true"} if unique else {})
    answers = await calls.ask_leaders(sorted(broker_groups), RequestCode.QUERY_MESSAGE, ext, accept=_NOT_FOUND_CODES)
    candidates = [
        message
        for name, answer in answers.items()
        for message in messages_in(answer, name, keep_unreadable=keep_unreadable)
    ]
    matching = [message for message in candidates if header.key == message.message_id or header.key in message.keys]
    matching.sort(key=lambda message: (message.stored_timestamp_ms, message.queue, message.queue_offset))
    return matching[-header.max_num :]
