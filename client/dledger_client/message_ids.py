"""Offset message ids: the message that one names, found on the broker group whose node it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import ViewMessageHeader, encode_ext
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.route import BrokerData

from .cluster_calls import ClusterCalls, absence
from .errors import InvalidArgumentError, NoBrokerError
from .messages import ReceivedMessage, messages_in

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
