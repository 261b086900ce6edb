"""Comparison of values as RocketMQ does it in Java.

A property is a string. If it is compared with a number, it is read as that type: `5` is a 32-bit integer, `5000000000`
a 64-bit integer, `5.0` a double. A property that is not a number of that type raises `Incomparable`, for example `5.5`
compared with `5`. It then makes the whole expression false, wherever it occurs. Two properties that are ordered are
read as doubles.

Doubles have Java's order: -0.0 is less than 0.0, and NaN is above all and equal to itself. Only ASCII digits count;
Java also takes others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import copysign, isnan
from typing import Final

from dledger_remoting.filters.syntax import Kind, Literal

_INTEGER: Final = re.compile(r"[+-]?[0-9]+").fullmatch
_DOUBLE: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)").fullmatch
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
).fullmatch
_BLANKS: Final = "".join(map(chr, range(33)))


class Incomparable(Exception):  # noqa: N818 -- an outcome of a comparison
    """A string that is compared with a number is not a number of that type."""


def read_int32(text: str) -> int:
    """Read a text as Java's `Integer.valueOf` does. Raises `Incomparable`."""
    return _read_integer(text, 1 << 31)


def read_int64(text: str) -> int:
    """Read a text as Java's `Long.valueOf` does. Raises `Incomparable`."""
    return _read_integer(text, 1 << 63)


def _read_integer(text: str, bound: int) -> int:
    if _INTEGER(text):
        try:
            number = int(text)
        except ValueError as error:  # more digits than Python converts to a number
            raise Incomparable from error
        if -bound <= number < bound:
            return number
    raise Incomparable


def read_double(text: str) -> float:
    """Read a text as Java's `Double.valueOf` does. Raises `Incomparable`."""
    text = text.strip(_BLANKS)
    if _DOUBLE(text):
        return float(text.rstrip("fFdD") if text[-1:] in "fFdD" else text)
    if _HEX_DOUBLE(text):
        try:
            return float.fromhex(text.rstrip("fFdD"))
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    raise Incomparable


READERS: Final[dict[Kind, Callable[[str], float]]] = {
    Kind.INT32: read_int32,
    Kind.INT64: read_int64,
    Kind.DOUBLE: read_double,
}
"""Functions that read a string which is compared with a number of this kind."""


def read_boolean(text: str) -> bool:
    """Read a text as Java's `Boolean.valueOf` does: only `true`, in any case, is true."""
    return len(text) == len("true") and text.lower() == "true"


def order_doubles(left: float, right: float) -> int:
    """Compare as Java's `Double.compareTo` does. Returns a number below 0, 0 or above 0."""
    if left < right:
        return -1
    if left > right:
        return 1
    left_key, right_key = (isnan(left), copysign(1.0, left)), (isnan(right), copysign(1.0, right))
    if left_key[0] or right_key[0]:
        return left_key[0] - right_key[0]
    return (left_key > right_key) - (left_key < right_key) if left == 0 else 0


def order(left: float, right: float) -> int:
    """Compare two numbers: two integers as integers, all others as doubles. Returns a number below 0, 0 or above 0."""
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return order_doubles(float(left), float(right))


def in_order(low: Literal, high: Literal) -> bool:
    """Return whether the first number is not larger than the second."""
    return (
        isinstance(low.value, int | float) and isinstance(high.value, int | float) and order(low.value, high.value) <= 0
    )
