"""Comparison of values as RocketMQ does it in Java.

A property is a string. Beside a number it is read as one of the number's type: beside `5` as a 32-bit integer, beside
`5000000000` as a 64-bit integer, beside `5.0` as a double. One that is no such number, `5.5` beside `5` too, makes the
whole expression false wherever it stands, which here is the exception `Incomparable`. Two properties that are ordered
are read as doubles.

Doubles have Java's order: -0.0 is less than 0.0, and NaN is above all and equal to itself. Digits are those of ASCII;
Java takes others as well.
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
    """A string that is compared with a number is none of the number's type."""


def read_int32(text: str) -> int:
    """Java's `Integer.valueOf`. Raises `Incomparable`."""
    return _read_integer(text, 1 << 31)


def read_int64(text: str) -> int:
    """Java's `Long.valueOf`. Raises `Incomparable`."""
    return _read_integer(text, 1 << 63)


def _read_integer(text: str, bound: int) -> int:
    if _INTEGER(text):
        try:
            number = int(text)
        except ValueError as error:  # more digits than Python turns into a number
            raise Incomparable from error
        if -bound <= number < bound:
            return number
    raise Incomparable


def read_double(text: str) -> float:
    """Java's `Double.valueOf`. Raises `Incomparable`."""
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
"""How a string is read beside a number of each kind."""


def read_boolean(text: str) -> bool:
    """Java's `Boolean.valueOf`: anything else than `true`, in any case, is false."""
    return len(text) == len("true") and text.lower() == "true"


def order_doubles(left: float, right: float) -> int:
    """Less than, equal to or greater than 0, as Java's `Double.compareTo`."""
    if left < right:
        return -1
    if left > right:
        return 1
    mine, others = (isnan(left), copysign(1.0, left)), (isnan(right), copysign(1.0, right))
    if mine[0] or others[0]:
        return mine[0] - others[0]
    return (mine > others) - (mine < others) if left == 0 else 0


def order(left: float, right: float) -> int:
    """The order of two numbers; two integers are compared as such, all else as doubles."""
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return order_doubles(float(left), float(right))


def in_order(low: Literal, high: Literal) -> bool:
    """True if one number is not larger than another one."""
    return (
        isinstance(low.value, int | float) and isinstance(high.value, int | float) and order(low.value, high.value) <= 0
    )
