"""Integer types in the ranges that RocketMQ's clients and servers, which are Java, can hold.

Decoders check the ranges.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

MIN_INT32: Final = -(2**31)
MAX_INT32: Final = 2**31 - 1
MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_INT32, le=MAX_INT32)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_INT64, le=MAX_INT64)]
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
"""A position in a queue or in the log."""
