"""Rights that an account needs for each way of reading and writing, and the table for the documentation."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from .queues import PULL_GROUP

Resource: TypeAlias = Literal["the cluster", "its topics", "its group", "CID_RMQ_SYS_SPARK"]


class Right(NamedTuple):
    """One right: an action, in the words of the access rules, on a resource."""

    action: str
    resource: Resource


class Way(NamedTuple):
    """A way of reading or writing, and the rights that it needs."""

    name: str
    rights: tuple[Right, ...]
    note: str = ""


_LOG: Final = Right("Log", "the cluster")
_PULLS: Final = (_LOG, Right("Sub", "its topics"), Right("Sub", PULL_GROUP))
_COMMITS: Final = tuple(Right(action, "its group") for action in ("Sub", "Get", "Update"))

WAYS: Final = (
    Way("reads, `mode=segments`", (_LOG,), "; ranges of the log have the messages of all topics"),
    Way("the same, from or to a time", (_LOG, Right("Get", "its topics"))),
    Way("reads, `mode=queues`, and so a stream", _PULLS),
    Way("a stream with `groupId`", (*_PULLS, *_COMMITS)),
    Way("writes", (Right("Pub", "its topics"),), ", and `Create` if there are none yet"),
    Way("writes with the column `partition`", (Right("Pub", "its topics"), _LOG)),
)
"""Every way."""


def rights_table() -> str:
    """Return the table of all ways, in Markdown."""
    lines = ["| a job that | needs |", "|---|---|"]
    for way in WAYS:
        rights = [
            f"`{right.action}` on {f'the group `{PULL_GROUP}`' if right.resource == PULL_GROUP else right.resource}"
            for right in way.rights
        ]
        lines.append(f"| {way.name} | {', '.join(rights)}{way.note} |")
    return "\n".join(lines) + "\n"
