"""Arguments of public calls, held against their annotations before anything is done with them.

A wrong type would end in an error of Python's own somewhere inside, perhaps after a request has left, or it would be
taken for something else: `True` for a number of queues, one text for a list of them. A class is `checked` as a whole,
so that no call of it can be forgotten: each raises `InvalidArgumentError`, which names the argument and its value.

| annotation | what is taken |
|---|---|
| `str` | a text that UTF-8 can hold: no half of a surrogate pair |
| `int` | an integer; `bool` is none |
| `float` | an integer or a float of at most `MAX_NUMBER`, not NaN |
| `Sequence`, `Iterable` | one that is no `str` or `bytes`, with all its elements; an iterator's are left to the call |
| `Mapping`, `tuple`, a `NamedTuple`, a struct | with all that is inside; a plain tuple stands for a `NamedTuple` |
| `Literal`, unions, `Callable`, `None`, other classes | as they say |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from .errors import InvalidArgumentError

MAX_NUMBER: Final = 1e9
"""Seconds of thirty years. Timers of event loops overflow far above."""
_SHOWN_CHARS: Final = 120
_SECRET: Final = frozenset({"credentials", "secret"})
"""Arguments that no error shows."""

ClassT = TypeVar("ClassT", bound=type)
ReturnT = TypeVar("ReturnT")
Params = ParamSpec("Params")


class Wrong(NamedTuple):
    """The part of an argument that is wrong: its place in it, what it is, what is expected there."""

    place: str
    value: object
    expected: str


Check: TypeAlias = Callable[[object], Wrong | None]
"""Finds what is wrong with a value; None if nothing is."""


def checked(cls: ClassT) -> ClassT:
    """The class itself, whose constructor and public methods refuse arguments that break their annotations."""
    for name, call in list(vars(cls).items()):
        if inspect.isfunction(call) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _checked_call(call))
    return cls


def check(name: str, value: object, annotation: object) -> None:
    """Raise `InvalidArgumentError` if the argument `name` breaks its annotation."""
    if (wrong := check_of(annotation)(value)) is not None:
        raise _refusal(name, wrong)


def at_least(minimum: float, **arguments: float | None) -> None:
    """Raise `InvalidArgumentError` for the first argument that is smaller; None is not."""
    for name, value in arguments.items():
        if value is not None and value < minimum:
            raise InvalidArgumentError(f"{name}={value!r}: at least {minimum} is expected")


def above_zero(**arguments: float | None) -> None:
    """Raise `InvalidArgumentError` for the first argument that is not above 0; None is."""
    for name, value in arguments.items():
        if value is not None and value <= 0:
            raise InvalidArgumentError(f"{name}={value!r}: more than 0 is expected")


def check_of(annotation: object) -> Check:
    """The check that an annotation stands for."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if origin in (Union, UnionType):
        return _any_of(arguments)
    if origin is Literal:
        return _where(lambda value: isinstance(value, str) and value in arguments, f"one of {', '.join(arguments)}")
    if origin in (Mapping, dict):
        return _mapping(check_of(arguments[0]), check_of(arguments[1]))
    if origin in (Sequence, Iterable) or (origin is tuple and arguments[-1] is Ellipsis):
        return _elements(origin, check_of(arguments[0]))
    if origin is tuple:
        return _tuple({str(place): check_of(field) for place, field in enumerate(arguments)})
    if origin is Callable:
        return _where(callable, "a function")
    if not isinstance(annotation, type):
        raise TypeError(f"there is no check for arguments of the type {annotation}")
    if issubclass(annotation, tuple | msgspec.Struct):
        fields = {name: check_of(hint) for name, hint in get_type_hints(annotation).items()}
        return _tuple(fields) if issubclass(annotation, tuple) else _struct(annotation, fields)
    return _where(lambda value: isinstance(value, annotation), f"a {annotation.__name__}")


def _where(is_right: Callable[[object], bool], expected: str) -> Check:
    def find(value: object) -> Wrong | None:
        return None if is_right(value) else Wrong("", value, expected)

    return find


def _text(value: object) -> Wrong | None:
    try:
        if isinstance(value, str) and (value.isascii() or value.encode()):
            return None
    except UnicodeEncodeError:
        pass
    return Wrong("", value, "a str without surrogates")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


_SIMPLE: Final[dict[object, Check]] = {
    str: _text,
    bytes: _where(lambda value: isinstance(value, bytes), "bytes"),
    bool: _where(lambda value: isinstance(value, bool), "True or False"),
    int: _where(_is_integer, "an int"),
    float: _where(_is_number, f"a number up to {MAX_NUMBER:.0e}"),
    NoneType: _where(lambda value: value is None, "None"),
}


def _any_of(alternatives: tuple[object, ...]) -> Check:
    checks = [check_of(alternative) for alternative in alternatives]
    right_away = frozenset({NoneType, bytes, bool}.intersection(alternatives))
    """Types of which every value is right: a batch has four or five such values for each of its messages."""

    def find(value: object) -> Wrong | None:
        if type(value) in right_away:
            return None
        found: list[Wrong] = []
        for one in checks:
            wrong = one(value)
            if wrong is None:
                return None
            found.append(wrong)
        inside = [wrong for wrong in found if wrong.place]
        return inside[0] if inside else Wrong("", value, " or ".join(dict.fromkeys(wrong.expected for wrong in found)))

    return find


def _elements(kind: type, check_element: Check) -> Check:
    expected = f"a {kind.__name__.lower()}, but not a str or bytes,"

    def find(value: object) -> Wrong | None:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            return Wrong("", value, expected)
        for place, element in enumerate(value if isinstance(value, Collection) else ()):
            if (wrong := check_element(element)) is not None:
                return wrong._replace(place=f"[{place}]{wrong.place}")
        return None

    return find


def _mapping(check_key: Check, check_value: Check) -> Check:
    def find(value: object) -> Wrong | None:
        if not isinstance(value, Mapping):
            return Wrong("", value, "a mapping")
        for key, item in value.items():
            if (wrong := check_key(key)) is not None:
                return wrong._replace(place=" key")
            if (wrong := check_value(item)) is not None:
                return wrong._replace(place=f"[{key!r}]{wrong.place}")
        return None

    return find


def _tuple(fields: Mapping[str, Check]) -> Check:
    expected = f"a tuple of {len(fields)}"

    def find(value: object) -> Wrong | None:
        if not isinstance(value, tuple) or len(value) != len(fields):
            return Wrong("", value, expected)
        return _first_wrong(fields, value)

    return find


def _struct(kind: type, fields: Mapping[str, Check]) -> Check:
    names = tuple(fields)

    def find(value: object) -> Wrong | None:
        if not isinstance(value, kind):
            return Wrong("", value, f"a {kind.__name__}")
        return _first_wrong(fields, [getattr(value, name) for name in names])

    return find


def _first_wrong(fields: Mapping[str, Check], parts: Iterable[object]) -> Wrong | None:
    for (name, find), part in zip(fields.items(), parts, strict=True):
        if (wrong := find(part)) is not None:
            return wrong._replace(place=f".{name}{wrong.place}")
    return None


def _checked_call(call: Callable[Params, ReturnT]) -> Callable[Params, ReturnT | Coroutine[Any, Any, ReturnT]]:
    hints = get_type_hints(call)
    in_order = [(name, check_of(hints[name])) for name in list(inspect.signature(call).parameters)[1:]]
    by_name = dict(in_order)
    if not in_order:
        return call

    def check_all(given: tuple[object, ...], named: Mapping[str, object]) -> None:
        for (name, find), value in zip(in_order, given[1:], strict=False):
            if (wrong := find(value)) is not None:
                raise _refusal(name, wrong)
        for name, value in named.items():
            if name in by_name and (wrong := by_name[name](value)) is not None:
                raise _refusal(name, wrong)

    if not inspect.iscoroutinefunction(call):

        @wraps(call)
        def checked_call(*given: Params.args, **named: Params.kwargs) -> ReturnT:
            check_all(given, named)
            return call(*given, **named)

        return checked_call

    @wraps(call)
    async def checked_coroutine(*given: Params.args, **named: Params.kwargs) -> ReturnT:
        check_all(given, named)
        result: ReturnT = await call(*given, **named)
        return result

    return checked_coroutine


def _refusal(name: str, wrong: Wrong) -> InvalidArgumentError:
    shown = "a value of another type" if name in _SECRET else repr(wrong.value)
    shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}... of type {type(wrong.value).__name__}"
    return InvalidArgumentError(f"{name}{wrong.place}={shown}: {wrong.expected} is expected")
