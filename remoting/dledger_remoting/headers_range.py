"""Headers of reading the log itself, and of the pins that keep it meanwhile: codes 20010 to 20015, all of them ours.

`roles` is a comma-separated list of `leader`, `follower` and `learner`: a node whose present role is not among them
refuses with code 20110. Positions are byte positions of a group's log, times are ms since 1970.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .integers import Int32, Int64

ROLES: Final = ("leader", "follower", "learner")
"""What a node can be to a reader."""

DEFAULT_SLICE_BYTES: Final = 32 << 20
MIN_SLICE_BYTES: Final = 64 << 10
DEFAULT_RANGE_BYTES: Final = 4 << 20
MAX_RANGE_BYTES: Final = 8 << 20
"""An answer to `READ_RANGE` is larger only if its first entry is."""

DEFAULT_LEASE_MS: Final = 3_600_000
MAX_LEASE_MS: Final = 3_600_000
MAX_PIN_NAME_BYTES: Final = 255


class ReadPlanHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Plan the reading of a group's log, at one applied position of the node that answers (20010).

    `topics` are comma-separated names, absent for all that exist; a name without a topic is left out of the plan.
    `slice_bytes` is how far cuts are apart, about. `times` asks for the store times of every slice. The node waits a
    moment to have applied `min_commit`, then refuses with 20111. Cuts begin at the entry that holds `start_position`,
    by default at the first kept one.
    """

    roles: str = "follower"
    topics: str | None = None
    slice_bytes: Int64 = DEFAULT_SLICE_BYTES
    times: bool = False
    min_commit: Int64 = 0
    start_position: Int64 = 0


class ReadRangeHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read entries of the log from `start`, a cut or the `end` of an earlier answer, up to `end` (20011).

    The answer has as many whole entries as `max_bytes` allow, at least one. `min_commit` as in `ReadPlanHeader`; a
    range beyond what the node has applied is refused with 20111, one that is no longer kept with 20112. A `pin` that is
    named is renewed.
    """

    start: Int64
    end: Int64
    roles: str = "follower"
    max_bytes: Int32 = DEFAULT_RANGE_BYTES
    min_commit: Int64 = 0
    pin: str | None = None


class ReadRangeResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What the body is: whole entries from `start` on. The next read starts at `end`, which may lie behind a blank that
    the body leaves out. `commit` is what the node has applied.
    """

    group: str
    node: str
    role: str
    term: Int64
    commit: Int64
    start: Int64
    end: Int64


class ReadCommitResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Everything acknowledged before the request lies below `commit` (answer to 20012)."""

    group: str
    node: str
    role: str
    term: Int64
    commit: Int64


class PinHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Keep the log from `position` on for `lease_millis`, at most an hour (20013).

    A pin of the same name keeps the lower of both positions and starts its lease anew. A `renewal`, which nodes send
    each other for a reader, starts the lease of a pin anew as it stands, and makes none.
    """

    name: str
    position: Int64
    lease_millis: Int64 = DEFAULT_LEASE_MS
    renewal: bool = False


class PinResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """From which position the log is kept, and until when, unless the pin is renewed or the disk fills up."""

    position: Int64
    expires: Int64


class PinNameHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One pin (20014)."""

    name: str
