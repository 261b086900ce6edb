"""Texts of refusals (3) that brokers and name servers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ELECTS: Final = "a group elects its leader itself"

INSTEAD_OF_CONTROLLER: Final[Mapping[int, str]] = {
    **dict.fromkeys((1_001, 1_003, 1_008, 1_012, 1_013), f"{_ELECTS}: nodes report to no controller"),
    **dict.fromkeys((1_004, 1_005, 1_006, 1_007), f"{_ELECTS}: see `dledger status` and `dledger cluster info`"),
    1_002: f"{_ELECTS}: `dledger node lead` hands the lead over",
    **dict.fromkeys((1_009, 1_010), f"{_ELECTS}: when it does, election_min_ms in the nodes' files says"),
    1_011: f"{_ELECTS}: `dledger node remove` takes out a node, `dledger cluster forget` a group",
}
"""Alternatives to the requests of RocketMQ's controller, which runs in its name servers or on its own.

RocketMQ's brokers also send each other some of these codes.
"""


def with_instead(refusal: str, code: int, instead: Mapping[int, str]) -> str:
    """Return a refusal of a request code, followed by the alternative that `instead` names for it, if any."""
    return f"{refusal}: {instead[code]}" if code in instead else refusal
