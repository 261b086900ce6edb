"""Properties and flags of a message that request kinds of storage that this broker does not have.

A message with one of them is refused. Stored as an ordinary message, it would not reach its sender's consumers, or
would reach consumers that must not get it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_remoting.errors import MessageIllegal
from dledger_remoting.properties import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    TIMER_DELETE_UNIQUE_KEY,
    find_property,
)
from dledger_remoting.record import SYS_INNER_BATCH_MASK

_INNER: Final = b"INNER_"
_DELETE: Final = b"_DEL_"
"""Parts of names: each refused name contains one of these two."""
_LIGHT_QUEUES: Final = "names light message queues (LMQ), which there are none of here: send to topics"
_ONE_RECORD: Final = "says that one record holds several messages (BatchCQ): send a batch (320)"
_REFUSED: Final[Mapping[str, str]] = {
    INNER_MULTI_DISPATCH: _LIGHT_QUEUES,
    INNER_MULTI_QUEUE_OFFSET: _LIGHT_QUEUES,
    INNER_NUM: _ONE_RECORD,
    INNER_BASE: _ONE_RECORD,
    TIMER_DELETE_UNIQUE_KEY: "takes a delayed message back, which a message cannot do here: recall it (370)",
}


def check_properties(properties: bytes) -> None:
    """Raise `MessageIllegal` if a message has one of these properties, with a value."""
    if properties.find(_INNER) < 0 and properties.find(_DELETE) < 0:
        return
    for name, reason in _REFUSED.items():
        if find_property(properties, name.encode()):
            raise MessageIllegal(f"property {name} {reason}")


def check_sys_flag(sys_flag: int) -> None:
    """Raise `MessageIllegal` if a message claims to be several messages in one record."""
    if sys_flag & SYS_INNER_BATCH_MASK:
        raise MessageIllegal(f"sysFlag {sys_flag} {_ONE_RECORD}")
