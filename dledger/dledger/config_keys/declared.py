"""Declarations of keys: fields of a dataclass, with what is to be known of each beside its name, type and default.

    @dataclass(frozen=True, kw_only=True)
    class Retention:
        retention_hours: int = key(
            72, "messages older than this go", bounds=(1, 876_000), aliases=(Alias("fileReservedTime"),)
        )

The end of a number's name is its unit: `_ms`, `_s`, `_hours`, `_bytes`, `_bytes_per_s`; without such an end it is a
count or a ratio.  A configuration of several sections is a dataclass with those as its bases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import get_annotations
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_type_hints

from dledger.invariants import invariant

ConfigValue: TypeAlias = str | int | float | bool | list["ConfigValue"] | dict[str, "ConfigValue"]
"""A value as a file has it."""
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
    """What an alias says that has values of the same form as its key."""
    return value


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a key, RocketMQ's.

    `read` makes the key's value of a value under this name, of which it is given the whole table, too; None if it says
    nothing of the key.  It raises `UnexpectedError`, or the component's own error.  `words` are the key's values by the
    words for them under this name, if those are others.  `note` is what the page says beside the name.
    """

    name: str
    read: Callable[[str, ConfigValue, Table], ConfigValue | None] = as_it_is
    note: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    def meant(self, value: ConfigValue, table: Table) -> ConfigValue | None:
        """The key's value by `value`, in the form of our own files; None if it says nothing of it."""
        if not self.words:
            return self.read(self.name, value, table)
        if not isinstance(value, str) or value not in self.words:
            raise UnexpectedError(" or ".join(self.words))
        return self.words[value]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is declared of a key; `key` says what each means."""

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
    aliases: tuple[Alias, ...] = ()
    read: Callable[[str, ConfigValue, Path], object] | None = None
    check: Callable[[str, Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is declared; `kind` is one of `KINDS`, or the type of its field if it has a reader of its own."""

    name: str
    kind: type
    default: object
    about: About
    section: type

    @property
    def is_needed(self) -> bool:
        """Whether a file must have it."""
        return self.default is MISSING

    @property
    def unit(self) -> str:
        """The unit of its number, "" for a count and for what is no number."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "") if self.is_number else ""

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
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
    """Declare the key that a field is.

    default      its value where nothing is said; `shown`: what the page says instead, of one that follows from others
    meaning      what it is, in Markdown of the page, and `consequence`, what comes of it when it is reached
    bounds       smallest and largest value of a number
    choices      the texts that it takes, and `expected`, what is said to whoever gives another one
    below        the key whose value must be larger, and what would happen otherwise
    takes        what the page says of the values, if that does not follow from type, bounds and choices
    live         whether it may be changed while the process runs
    aliases      other names of it
    read         what makes its value of the file's: given the name, the value and the file's directory. Raises
                 `UnexpectedError`, or the component's own error
    check        raises `ValueError` with what is wrong with a value, given name and value
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
    made: Any = (
        field(default_factory=default.copy, metadata={_ABOUT: about})
        if isinstance(default, dict)
        else field(default=default, metadata={_ABOUT: about})
    )
    return made  # type: ignore[no-any-return] # a field has the type of its default, as with `dataclasses.field`


def needed(
    meaning: str,
    because: str,
    *,
    aliases: tuple[Alias, ...] = (),
    check: Callable[[str, Any], None] | None = None,
) -> dict[str, About]:
    """The metadata of a field without a default: a key that a file must have, `because` of that."""
    return {_ABOUT: About(meaning=meaning, because=because, aliases=aliases, check=check)}


def keys_of(declared: type) -> dict[str, Key]:
    """The keys of a dataclass by name: its own, then those of each of its bases, as declared."""
    hints = get_type_hints(declared)
    by_name = {entry.name: entry for entry in fields(declared)}
    found: dict[str, Key] = {}
    for section in declared.__mro__:
        for name in get_annotations(section) if is_dataclass(section) else ():
            entry = by_name[name]
            invariant(_ABOUT in entry.metadata, "a field of a configuration declares its key", key=name)
            about: About = entry.metadata[_ABOUT]
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            found[name] = Key(name, _kind_of(hints[name], about), default, about, section)
    return found


def _kind_of(hint: object, about: About) -> type:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if hint not in KINDS else [hint]
    if about.read is None:
        invariant(len(kinds) == 1 and kinds[0] in KINDS, "a key of another type has a reader", type=hint)
        return kinds[0]
    return hint if isinstance(hint, type) else object
