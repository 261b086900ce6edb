"""Checks of arguments of public calls, by their annotations, before a call does anything.

A wrong type would otherwise raise one of Python's own errors somewhere inside, perhaps after a request was sent. Or it
would be mistaken for something else: `True` for a number of queues, one text for a list of texts. A class is `checked`
as a whole, so that no public call is forgotten. Each call raises `InvalidArgumentError`, which names the argument and
its value.

| annotation | accepted values |
|---|---|
| `str` | a text that UTF-8 can hold: no half of a surrogate pair |
| `int` | an integer, but no `bool` |
| `float` | an integer or a float of at most `MAX_NUMBER`, not NaN |
| `Sequence`, `Iterable` | no `str` or `bytes`; all elements are checked, those of an iterator only by the call |
| `Mapping`, `tuple`, a `NamedTuple`, a struct | all parts are checked; a plain tuple stands for a `NamedTuple` |
| `Literal`, unions, `Callable`, `None`, other classes | values of the named kind |
| `Unpack` of a `TypedDict`, for `**options` | for each of its names, the values of the named kind |
| a type variable | any value: the codec of the client judges it |
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
"""Maximum of a number, in seconds: thirty years. Timers of event loops overflow far above."""
_MAX_VALUE_CHARS: Final = 120
_SECRET_ARGUMENTS: Final = frozenset({"credentials", "secret"})
"""Arguments whose values no error shows."""

ClassT = TypeVar("ClassT", bound=type)
ReturnT = TypeVar("ReturnT")
Params = ParamSpec("Params")


class Wrong(NamedTuple):
    """The wrong part of an argument: its place in the argument, its value, and what is expected there."""

    place: str
    value: object
    expected: str


Check: TypeAlias = Callable[[object], Wrong | None]
"""Function that returns the wrong part of a value, None if the whole value is right."""


def checked(cls: ClassT) -> ClassT:
    """Make the constructor and the public methods of a class refuse arguments that break their annotations."""
    for name, call in list(vars(cls).items()):
        if inspect.isfunction(call) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _wrap_call(call))
    return cls


def check(name: str, value: object, annotation: object) -> None:
    """Raise `InvalidArgumentError` if the argument `name` breaks its annotation."""
    if (wrong := check_of(annotation)(value)) is not None:
        raise _make_error(name, wrong)


def at_least(minimum: float, **arguments: float | None) -> None:
    """Raise `InvalidArgumentError` for the first argument that is smaller than `minimum`. None passes."""
    for name, value in arguments.items():
        if value is not None and value < minimum:
            raise InvalidArgumentError(f"{name}={value!r}: at least {minimum} is expected")


def above_zero(**arguments: float | None) -> None:
    """Raise `InvalidArgumentError` for the first argument that is not above 0. None passes."""
    for name, value in arguments.items():
        if value is not None and value <= 0:
            raise InvalidArgumentError(f"{name}={value!r}: more than 0 is expected")


def check_of(annotation: object) -> Check:
    """Return the check for an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE_CHECKS:
        return _SIMPLE_CHECKS[annotation]
    if isinstance(annotation, TypeVar):
        return _accept
    if origin in (Union, UnionType):
        values = [alternative for alternative in arguments if isinstance(alternative, TypeVar)]
        others = tuple(alternative for alternative in arguments if alternative not in values)
        return _make_value_check(others) if values else _make_union_check(arguments)
    if origin is Literal:
        return _make_check(
            lambda value: isinstance(value, str) and value in arguments, f"one of {', '.join(arguments)}"
        )
    if origin in (Mapping, dict):
        return _make_mapping_check(check_of(arguments[0]), check_of(arguments[1]))
    if origin in (Sequence, Iterable) or (origin is tuple and arguments[-1] is Ellipsis):
        return _make_elements_check(origin, check_of(arguments[0]))
    if origin is tuple:
        return _make_tuple_check({str(place): check_of(field) for place, field in enumerate(arguments)})
    if origin is Callable:
        return _make_check(callable, "a function")
    value_hint: object = bytes  # the default of every type variable of the client
    if isinstance(origin, type):  # a generic class with its parameter
        annotation, value_hint = origin, arguments[0]
    if not isinstance(annotation, type):
        raise TypeError(f"there is no check for arguments of the type {annotation}")
    if issubclass(annotation, tuple | msgspec.Struct):
        hints = get_type_hints(annotation).items()
        fields = {name: check_of(value_hint if isinstance(hint, TypeVar) else hint) for name, hint in hints}
        return _make_tuple_check(fields) if issubclass(annotation, tuple) else _make_struct_check(annotation, fields)
    return _make_check(lambda value: isinstance(value, annotation), f"a {annotation.__name__}")


def _make_check(is_right: Callable[[object], bool], expected: str) -> Check:
    def find_wrong(value: object) -> Wrong | None:
        return None if is_right(value) else Wrong("", value, expected)

    return find_wrong


def _check_text(value: object) -> Wrong | None:
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


_SIMPLE_CHECKS: Final[dict[object, Check]] = {
    str: _check_text,
    bytes: _make_check(lambda value: isinstance(value, bytes), "bytes"),
    bool: _make_check(lambda value: isinstance(value, bool), "True or False"),
    int: _make_check(_is_integer, "an int"),
    float: _make_check(_is_number, f"a number up to {MAX_NUMBER:.0e}"),
    NoneType: _make_check(lambda value: value is None, "None"),
}


def _make_union_check(alternatives: tuple[object, ...]) -> Check:
    checks = [check_of(alternative) for alternative in alternatives]
    accepted_types = frozenset({NoneType, bytes, bool}.intersection(alternatives))
    """Types whose values are all right. This saves time: a batch has four or five such values for each message."""

    def find_wrong(value: object) -> Wrong | None:
        if type(value) in accepted_types:
            return None
        failures: list[Wrong] = []
        for check_alternative in checks:
            wrong = check_alternative(value)
            if wrong is None:
                return None
            failures.append(wrong)
        nested = [wrong for wrong in failures if wrong.place]
        return (
            nested[0] if nested else Wrong("", value, " or ".join(dict.fromkeys(wrong.expected for wrong in failures)))
        )

    return find_wrong


def _accept(_value: object) -> Wrong | None:
    """Accept a value of the application's own type: its codec judges it."""
    return None


def _make_value_check(classes: tuple[object, ...]) -> Check:
    """Return the check for a value of the application's own type, or an instance of one of these classes."""
    checks = [(get_origin(each) or each, check_of(each)) for each in classes]

    def find_wrong(value: object) -> Wrong | None:
        for kind, find_wrong_part in checks:
            if isinstance(kind, type) and isinstance(value, kind):
                return find_wrong_part(value)
        return None

    return find_wrong


def _make_elements_check(kind: type, check_element: Check) -> Check:
    expected = f"a {kind.__name__.lower()}, but not a str or bytes,"

    def find_wrong(value: object) -> Wrong | None:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            return Wrong("", value, expected)
        for place, element in enumerate(value if isinstance(value, Collection) else ()):
            if (wrong := check_element(element)) is not None:
                return wrong._replace(place=f"[{place}]{wrong.place}")
        return None

    return find_wrong


def _make_mapping_check(check_key: Check, check_value: Check) -> Check:
    def find_wrong(value: object) -> Wrong | None:
        if not isinstance(value, Mapping):
            return Wrong("", value, "a mapping")
        for key, item in value.items():
            if (wrong := check_key(key)) is not None:
                return wrong._replace(place=" key")
            if (wrong := check_value(item)) is not None:
                return wrong._replace(place=f"[{key!r}]{wrong.place}")
        return None

    return find_wrong


def _make_tuple_check(fields: Mapping[str, Check]) -> Check:
    expected = f"a tuple of {len(fields)}"

    def find_wrong(value: object) -> Wrong | None:
        if not isinstance(value, tuple) or len(value) != len(fields):
            return Wrong("", value, expected)
        return _find_wrong_field(fields, value)

    return find_wrong


def _make_struct_check(kind: type, fields: Mapping[str, Check]) -> Check:
    names = tuple(fields)

    def find_wrong(value: object) -> Wrong | None:
        if not isinstance(value, kind):
            return Wrong("", value, f"a {kind.__name__}")
        return _find_wrong_field(fields, [getattr(value, name) for name in names])

    return find_wrong


def _find_wrong_field(fields: Mapping[str, Check], parts: Iterable[object]) -> Wrong | None:
    for (name, find_wrong), part in zip(fields.items(), parts, strict=True):
        if (wrong := find_wrong(part)) is not None:
            return wrong._replace(place=f".{name}{wrong.place}")
    return None


def _wrap_call(call: Callable[Params, ReturnT]) -> Callable[Params, ReturnT | Coroutine[Any, Any, ReturnT]]:
    hints = get_type_hints(call)
    parameters = list(inspect.signature(call).parameters.values())[1:]
    positional = [(each.name, check_of(hints[each.name])) for each in parameters if each.kind != each.VAR_KEYWORD]
    by_name = dict(positional)
    for each in parameters:
        if each.kind == each.VAR_KEYWORD:
            (options,) = get_args(hints[each.name])
            by_name.update((name, check_of(hint)) for name, hint in get_type_hints(options).items())
    if not by_name:
        return call

    def check_all(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        for (name, find_wrong), value in zip(positional, args[1:], strict=False):
            if (wrong := find_wrong(value)) is not None:
                raise _make_error(name, wrong)
        for name, value in kwargs.items():
            if name in by_name and (wrong := by_name[name](value)) is not None:
                raise _make_error(name, wrong)

    if not inspect.iscoroutinefunction(call):

        @wraps(call)
        def checked_call(*args: Params.args, **kwargs: Params.kwargs) -> ReturnT:
            check_all(args, kwargs)
            return call(*args, **kwargs)

        return checked_call

    @wraps(call)
    async def checked_coroutine(*args: Params.args, **kwargs: Params.kwargs) -> ReturnT:
        check_all(args, kwargs)
        result: ReturnT = await call(*args, **kwargs)
        return result

    return checked_coroutine


def _make_error(name: str, wrong: Wrong) -> InvalidArgumentError:
    shown = "a value of another type" if name in _SECRET_ARGUMENTS else repr(wrong.value)
    shown = (
        shown
        if len(shown) <= _MAX_VALUE_CHARS
        else f"{shown[:_MAX_VALUE_CHARS]}... of type {type(wrong.value).__name__}"
    )
    return InvalidArgumentError(f"{name}{wrong.place}={shown}: {wrong.expected} is expected")
