"""Request codes of RocketMQ that no feature handles, each with advice on what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_remoting.refusals import INSTEAD_OF_CONTROLLER, with_instead

_COPIES: Final = "everything is in the log that nodes replicate, `dledger status` shows how far each of them is"
_COLD: Final = "reads of what is not in memory hold up no send, so that there is nobody to slow down"
_ROCKSDB: Final = "there is no RocksDB here, consume queues are files and the rest is in the log"
_FILTERS: Final = (
    "no node runs code of clients: filter in SQL92, or list code as class_filters in the nodes' configuration"
)

INSTEAD: Final[Mapping[int, str]] = {
    **dict.fromkeys((43, 45, 60, 61, 902, 903, 905, 906, 907, 908), _COPIES),
    **INSTEAD_OF_CONTROLLER,
    **dict.fromkeys(range(2_001, 2_005), _COLD),
    **dict.fromkeys((354, 355), _ROCKSDB),
    **dict.fromkeys((301, 302), _FILTERS),
    308: "ask for offsets with 14, and set them with 15",
    353: "a topic's permission counts for all groups, change it with 17",
    513: "a queue stays in the broker group in which it was made, make topics with 17",
}


def refusal_of(code: int, name: str) -> str:
    """Return the text of an answer 3."""
    return with_instead(f" request type {code} not supported ({name})", code, INSTEAD)
