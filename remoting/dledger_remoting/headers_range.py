"""Headers of reading the log itself, and of the pins that keep it meanwhile: codes 20010 to 20014, all of them ours.

`roles` is a comma-separated list of `leader`, `follower` and `learner`. A node whose present role is not among them
refuses with code 20110. Positions are byte positions of a group's log; times are in ms since 1970.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .integers import Int32, Int64

ROLES: Final = ("leader", "follower", "learner")
"""Roles that a node can have for a reader."""

DEFAULT_SLICE_BYTES: Final = 32 << 20
MIN_SLICE_BYTES: Final = 64 << 10
DEFAULT_RANGE_BYTES: Final = 4 << 20
MAX_RANGE_BYTES: Final = 8 << 20
"""Maximum size of an answer to `READ_RANGE`, in bytes. Only an answer with a single, larger entry exceeds it."""

DEFAULT_LEASE_MS: Final = 3_600_000
MAX_LEASE_MS: Final = 3_600_000


class ReadPlanHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Plans the reading of a group's log, at one applied position of the node that answers (20010).

    `topics` are comma-separated names; if it is absent, all topics are meant. A name that no topic has is left out of
    the plan. `slice_bytes` is the approximate distance of cuts. `times` asks for the store times of every slice. A node
    that has not applied the position `min_commit` waits a moment for that. If it still has not, it refuses with 20111.
    Cuts begin at the entry that holds `start_position`, by default at the first kept entry. A node of another group
    than `group_identity` refuses with 20111.
    """

    roles: str = "follower"
    topics: str | None = None
    slice_bytes: Int64 = DEFAULT_SLICE_BYTES
    times: bool = False
    min_commit: Int64 = 0
    start_position: Int64 = 0
    group_identity: str | None = None


class ReadRangeHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Reads entries of the log from `start`, a cut or the `end` of an earlier answer, up to `end` (20011).

    The answer has as many whole entries as `max_bytes` allow, at least one. `min_commit` and `group_identity` are as in
    `ReadPlanHeader`. The node waits a moment until it has applied `end`, too, and otherwise refuses with 20111. It
    refuses a range that is no longer kept with 20112. If `pin` names a pin, the read renews its lease. With `verify`
    the node answers only if the entries verify. Otherwise it refuses with 20111 and has its log repaired.
    """

    start: Int64
    end: Int64
    roles: str = "follower"
    max_bytes: Int32 = DEFAULT_RANGE_BYTES
    min_commit: Int64 = 0
    pin: str | None = None
    verify: bool = False
    group_identity: str | None = None


class ReadRangeResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Describes the body: whole entries from `start` on. The next read starts at `end`.

    `end` may lie behind a blank that the body leaves out. `commit` is the position up to which the node has applied the
    log.
    """

    group: str
    node: str
    role: str
    term: Int64
    commit: Int64
    start: Int64
    end: Int64


class ReadCommitResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 20012: everything acknowledged before the request lies below `commit`.

    `group_identity` is sent once the node knows it.
    """

    group: str
    node: str
    role: str
    term: Int64
    commit: Int64
    group_identity: str | None = None


class PinHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Keeps the log from `position` on for `lease_millis`, at most an hour (20013).

    If a pin of the same name exists, the lower of both positions is kept and the lease starts anew. A `renewal` only
    starts the lease of an existing pin anew. The node that serves a reader sends renewals to the leader.
    """

    name: str
    position: Int64
    lease_millis: Int64 = DEFAULT_LEASE_MS
    renewal: bool = False


class PinResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 20013: the position from which the log is kept, and until when.

    The pin ends earlier if the disk fills up, and later if it is renewed.
    """

    position: Int64
    expires: Int64


class PinNameHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names one pin to remove (20014)."""

    name: str
