"""History of clients: operations with their outcomes, as the clients saw them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["ok", "fail", "info"]
"""`ok`: it took effect as the answer says.

`fail`: certainly without effect. `info`: the outcome is unknown, also later.
"""


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of one client, from its call to its end.

    `process` names the logical client within the workload. Operations of one process may overlap. `f` is the action
    (`send`, `commit`, `read`, …), `key` its object (a queue `topic/broker group/queue id`, a register, a group).
    `value` is the requested value, or the value that a read found. `extras` has further data of request and answer.

    Times are in ns, all of one clock. `complete_ns` is None if no end was seen; the outcome is `info` then. `code` is
    the response code of a refusal.
    """

    id: int
    workload: str
    process: str
    f: str
    key: str
    value: object
    outcome: Outcome
    invoke_ns: int
    complete_ns: int | None = None
    error: str = ""
    code: int | None = None
    extras: dict[str, object] = {}
