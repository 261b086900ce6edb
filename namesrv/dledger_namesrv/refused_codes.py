"""Request codes that RocketMQ's name servers serve and this one does not, with alternatives for their senders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_remoting.codes import request_code_name
from dledger_remoting.refusals import INSTEAD_OF_CONTROLLER, with_instead

INSTEAD: Final[Mapping[int, str]] = {
    217: "a topic has a route once a broker registers it, make it at a broker with 17 (`dledger topic create`)",
    **INSTEAD_OF_CONTROLLER,
}


def refusal_of(code: int) -> str:
    """Return the text of an answer 3."""
    refusal = f"request type {code} ({request_code_name(code)}) not supported by a name server"
    return with_instead(refusal, code, INSTEAD)
