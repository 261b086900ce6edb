"""Lookups of single messages: by offset message ids, and by keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import QueryMessageHeader, ViewMessageHeader, encode_ext
from dledger_remoting.headers_query import UNIQUE_KEY_QUERY_FIELD
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.route import BrokerData

from .cluster_calls import ClusterCalls, absence
from .errors import InvalidArgumentError, NoBrokerError
from .messages import ReceivedMessage, messages_in

MAX_TIMESTAMP_MS: Final = 2**63 - 1
MAX_MESSAGES_BY_KEY: Final = 64
"""How many messages with a key a broker gives at most, whatever it is asked for."""

_NOT_FOUND: Final = frozenset({int(ResponseCode.QUERY_NOT_FOUND)})
_NO_SUCH_RECORD: Final = frozenset({int(ResponseCode.SYSTEM_ERROR), int(ResponseCode.QUERY_NOT_FOUND)})


async def message_by_id(
    calls: ClusterCalls, offset_message_id: str, groups: Mapping[str, BrokerData]
) -> ReceivedMessage | None:
    """The message, or None. Raises `InvalidArgumentError` if the text is no such id, `NoBrokerError` if the message may
    be on a group that has no node.
    """
    try:
        host, physical_offset = parse_offset_message_id(offset_message_id)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error
    names = [name for name, group in groups.items() if str(host) in group.broker_addrs.values()] or list(groups)
    ext = encode_ext(ViewMessageHeader(offset=physical_offset))
    absent = [name for name in names if not groups[name].broker_addrs]
    for name in await calls.group_names([name for name in names if name not in absent]):
        answers = await calls.ask_leaders([name], RequestCode.VIEW_MESSAGE_BY_ID, ext, accept=_NO_SUCH_RECORD)
        found = messages_in(answers[name], name)
        if found and found[0].offset_message_id == offset_message_id.upper():
            return found[0]
    if absent:
        raise NoBrokerError(absence(absent))
    return None


async def messages_by_key(
    calls: ClusterCalls, broker_groups: Iterable[str], header: QueryMessageHeader, *, unique: bool
) -> list[ReceivedMessage]:
    """The newest `max_num` messages of a topic with a key, or with a unique key, oldest first."""
    ext = encode_ext(header) | ({UNIQUE_KEY_QUERY_FIELD: "true"} if unique else {})
    answers = await calls.ask_leaders(sorted(broker_groups), RequestCode.QUERY_MESSAGE, ext, accept=_NOT_FOUND)
    found = [message for name, answer in answers.items() for message in messages_in(answer, name)]
    matching = [message for message in found if header.key == message.message_id or header.key in message.keys]
    matching.sort(key=lambda message: (message.stored_timestamp_ms, message.queue, message.queue_offset))
    return matching[-header.max_num :]
