"""Effects of sends: they change the log, and a send to a write alias may be sent to the next leader again."""

from __future__ import annotations

from typing import Final

from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.routes import Effect
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers_send import WRITE_ALIAS_FIELD, SendMessageHeader
from dledger_remoting.record import SYS_TRANSACTION_MASK


def _may_be_sent_again(request: Request) -> bool:
    """Return whether a send arrived at a write alias, so that it may be sent again.

    Write aliases exist so that no send fails. A transaction's message is excluded: each stored copy would be checked
    back.
    """
    if WRITE_ALIAS_FIELD not in request.ext:
        return False
    try:
        header = SendMessageHeader.decode(request.ext)
    except RemotingError:
        return False
    return not header.sys_flag & SYS_TRANSACTION_MASK


STORES: Final = Effect(changes=True, again=_may_be_sent_again)
