"""Declarations of configuration keys: fields of a dataclass, each with metadata beside name, type and default.

    @dataclass(frozen=True, kw_only=True)
    class Retention:
        retention_hours: int = key(
            72, "messages older than this go", bounds=(1, 876_000), aliases=(Alias("fileReservedTime"),)
        )

The name of a number ends with its unit: `_ms`, `_s`, `_hours`, `_bytes`, `_bytes_per_s`. A number without a unit is a
count or a ratio. A configuration with several sections is a dataclass with the sections as its bases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import get_annotations
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_type_hints

from dledger_base.invariants import invariant

ConfigValue: TypeAlias = str | int | float | bool | list["ConfigValue"] | dict[str, "ConfigValue"]
"""A value as it is read from a file."""
Table: TypeAlias = Mapping[str, ConfigValue]
Default = TypeVar("Default")

KINDS: Final[tuple[type, ...]] = (bool, int, float, str, Path)
"""Types of fields that need no reader of their own."""
_ABOUT: Final = "about"
_UNITS: Final = {
    "_ms": "ms",
    "_bytes_per_s": "bytes/s",
    "_s": "s",
    "_hours": "hours",
    "_bytes": "bytes",
}


class UnexpectedError(ValueError):
    """A value that a key does not take; the text says what was expected."""


def as_it_is(_name: str, value: ConfigValue, _table: Table) -> ConfigValue | None:
    """Return the value of an alias whose values have the form of its key's."""
    return value


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a key, RocketMQ's.

    `read` turns a value under this name into the key's value. It is also given the whole table, and returns None if the
    value does not set the key. It raises `UnexpectedError`, or the component's own error. `words` map other words
    under this name to the key's values. The page shows `note` beside the name.
    """

    name: str
    read: Callable[[str, ConfigValue, Table], ConfigValue | None] = as_it_is
    note: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    def key_value(self, value: ConfigValue, table: Table) -> ConfigValue | None:
        """Return the key's value for `value`, in the form of our own files; None if `value` does not set the key."""
        if not self.words:
            return self.read(self.name, value, table)
        if not isinstance(value, str) or value not in self.words:
            raise UnexpectedError(" or ".join(self.words))
        return self.words[value]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Declaration of a key. `key` explains each field."""

    meaning: str
    consequence: str = ""
    bounds: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    expected: str = ""
    below: tuple[str, str] | None = None
    because: str = ""
    shown: str = ""
    takes: str = ""
    live: bool = False
    is_limit: bool = False
    aliases: tuple[Alias, ...] = ()
    read: Callable[[str, ConfigValue, Path], object] | None = None
    check: Callable[[str, Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is declared.

    `kind` is one of `KINDS`. With a reader of its own, it is the type of its field, or `object` for a union of types.
    """

    name: str
    kind: type
    default: object
    about: About
    section: type

    @property
    def is_needed(self) -> bool:
        """True if a file must have it."""
        return self.default is MISSING

    @property
    def unit(self) -> str:
        """The unit of its number; "" for a count, and for a key that takes no number."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "") if self.is_number else ""

    @property
    def is_number(self) -> bool:
        """True if its values are numbers."""
        return self.kind in (int, float)


def key(
    default: Default,
    meaning: str,
    *,
    consequence: str = "",
    bounds: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    expected: str = "",
    below: tuple[str, str] | None = None,
    shown: str = "",
    takes: str = "",
    live: bool = False,
    aliases: tuple[Alias, ...] = (),
    read: Callable[[str, ConfigValue, Path], object] | None = None,
    check: Callable[[str, Any], None] | None = None,
) -> Default:
    """Declare a field of a dataclass as a key.

    default      its default value; `shown`: the text of the page instead, if the default follows from other keys
    meaning      its meaning in Markdown, and `consequence`, the effect when the value is reached
    bounds       smallest and largest value of a number
    choices      the texts that it takes, and `expected`, the words of the error for other texts
    below        the key whose value must be larger, and the consequence of a smaller one
    takes        the page's text on the values, if it does not follow from type, bounds and choices
    live         True if it may be changed while the process runs
    aliases      other names of it
    read         function from the name, the value and the file's directory to the key's value. Raises
                 `UnexpectedError`, or the component's own error
    check        function of name and value that raises `ValueError` with the fault of the value
    """
    about = About(
        meaning=meaning,
        consequence=consequence,
        bounds=bounds,
        choices=choices,
        expected=expected,
        below=below,
        shown=shown,
        takes=takes,
        live=live,
        aliases=aliases,
        read=read,
        check=check,
    )
    return _declared(default, about)


def limit(
    default: Default,
    meaning: str,
    *,
    consequence: str = "",
    bounds: tuple[float, float] | None = None,
    below: tuple[str, str] | None = None,
) -> Default:
    """Declare a field of a dataclass as a limit: a documented constant that programs and tests change, and no file.

    A file that sets it is read as if it did not, with a warning. The arguments are those of `key`.
    """
    return _declared(
        default, About(meaning=meaning, consequence=consequence, bounds=bounds, below=below, is_limit=True)
    )


def _declared(default: Default, about: About) -> Default:
    declared_field: Any = (
        field(default_factory=default.copy, metadata={_ABOUT: about})
        if isinstance(default, dict)
        else field(default=default, metadata={_ABOUT: about})
    )
    return declared_field  # type: ignore[no-any-return] # a field has the type of its default, as with `dataclasses.field`


def needed(
    meaning: str,
    because: str,
    *,
    aliases: tuple[Alias, ...] = (),
    check: Callable[[str, Any], None] | None = None,
) -> dict[str, About]:
    """Return the metadata of a field without a default. A file must have its key, and `because` says why."""
    return {_ABOUT: About(meaning=meaning, because=because, aliases=aliases, check=check)}


def keys_of(declared: type) -> dict[str, Key]:
    """Return the keys of a dataclass by name, in the order of declaration: its own, then the keys of each base."""
    hints = get_type_hints(declared)
    by_name = {entry.name: entry for entry in fields(declared)}
    keys: dict[str, Key] = {}
    for section in declared.__mro__:
        for name in get_annotations(section) if is_dataclass(section) else ():
            entry = by_name[name]
            invariant(_ABOUT in entry.metadata, "a field of a configuration declares its key", key=name)
            about: About = entry.metadata[_ABOUT]
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            keys[name] = Key(name, _kind_of(hints[name], about), default, about, section)
    return keys


def _kind_of(hint: object, about: About) -> type:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if hint not in KINDS else [hint]
    if about.read is None:
        invariant(len(kinds) == 1 and kinds[0] in KINDS, "a key of another type has a reader", type=hint)
        return kinds[0]
    return hint if isinstance(hint, type) else object
