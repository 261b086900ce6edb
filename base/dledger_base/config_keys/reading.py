"""Reader of configuration files: turns the table of a file into values of declared keys, and raises errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dledger_base.config_keys.declared import Alias, ConfigValue, Key, Table, UnexpectedError, keys_of
from dledger_base.similar_names import either, nearest, some_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Wording of a component's errors in a file: templates of `str.format`, and names of kinds of values."""

    wrong: str = "{name} = {value!r}, expected {expected}"
    outside: str = "{name} = {value} is outside {low}..{high}"
    not_below: str = "{name} = {value} must be below {other} = {limit}: {why}"
    misspelled: str = "unknown key {name!r}, did you mean {near}?"
    unknown: str = "unknown key {name!r}"
    contradiction: str = "{name} = {value!r} contradicts {other} = {said!r}: both say {key}; remove one"
    text: str = "a text in quotes"
    path: str = "a path as text"
    by_alias: bool = False
    """True if an error about a value of the wrong kind has the name that the file uses, not the key's own."""


class Reading(NamedTuple):
    """Content of a file: values by key, in the types of the fields, and the file's name for each key.

    `ignored` are the limits that the file sets without effect.
    """

    values: dict[str, Any]
    names: dict[str, str]
    ignored: tuple[str, ...] = ()

    def warnings(self, keys: Keys) -> list[str]:
        """Return a line for each limit that the file sets without effect."""
        return [
            f"{name} is set and has no effect: this limit is {keys.by_name[name].default} in every configuration"
            for name in self.ignored
        ]


class Keys:
    """The keys of one kind of file, declared by the dataclass `declared`.

    Every fault is raised as `error`, with a text in the component's `wording`. With `texts_too`,
    numbers and truth values may be in quotes.
    """

    def __init__(
        self, declared: type, error: type[Exception], *, wording: Wording | None = None, texts_too: bool = False
    ) -> None:
        self.declared: Final = declared
        self.by_name: Final[Mapping[str, Key]] = keys_of(declared)
        self.aliases: Final[Mapping[str, tuple[tuple[Key, Alias], ...]]] = _by_alias(self.by_name)
        self._error = error
        self._wording = wording or Wording()
        self._texts_too = texts_too

    @property
    def settable(self) -> list[Key]:
        """The keys that a file may set. All others are limits."""
        return [key for key in self.by_name.values() if not key.about.is_limit]

    @property
    def live(self) -> list[str]:
        """The keys that may be changed while the process runs."""
        return [key.name for key in self.by_name.values() if key.about.live]

    def called(self, name: str) -> str:
        """Return the key with the alias `name`, the first if there are several; `name` itself if it is not an alias."""
        return self.aliases[name][0][0].name if name in self.aliases else name

    def read(self, table: Table, base: Path = Path()) -> Reading:
        """Read the values of `table`; relative paths count from `base`. Keys that the file must have may be missing."""
        key_values: dict[str, ConfigValue] = {}
        names: dict[str, str] = {}
        limits = [name for name in table if name in self.by_name and self.by_name[name].about.is_limit]
        for name, value in table.items():
            if name in limits:
                continue
            for key, key_value in self._key_values(name, value, table):
                if key.name in key_values and key_values[key.name] != key_value:
                    other = names[key.name]
                    raise self._error(
                        self._wording.contradiction.format(
                            name=name, value=value, other=other, said=table[other], key=key.name
                        )
                    )
                key_values[key.name] = key_value
                names[key.name] = name
        return Reading(
            {name: self._value(self.by_name[name], names[name], key_values[name], base) for name in key_values},
            names,
            tuple(limits),
        )

    def require(self, values: Mapping[str, object]) -> None:
        """Raise `error` for the first key that a file must have and that has no value."""
        for key in self.by_name.values():
            if key.is_needed and key.name not in values:
                raise self._error(f"{key.name} is missing: {key.about.because}")

    def check(self, config: object) -> None:
        """Raise `error` for the first value outside its bounds, or for the first that its key does not accept."""
        for key in self.by_name.values():
            self._check(key, config)
        for key in self.by_name.values():
            if key.about.below is not None:
                other, why = key.about.below
                value, limit = getattr(config, key.name), getattr(config, other)
                if value >= limit:
                    words = self._wording.not_below
                    raise self._error(words.format(name=key.name, value=value, other=other, limit=limit, why=why))

    def _key_values(self, name: str, value: ConfigValue, table: Table) -> list[tuple[Key, ConfigValue]]:
        """Return the keys that a file sets under `name`, with their values in the form of our own files."""
        if name in self.by_name:
            return [(self.by_name[name], value)]
        if name not in self.aliases:
            self._refuse_unknown(name, value)
        try:
            key_values = [(key, alias.key_value(value, table)) for key, alias in self.aliases[name]]
        except UnexpectedError as error:
            raise self._error(self._wording.wrong.format(name=name, value=value, expected=error)) from error
        return [(key, value_of_key) for key, value_of_key in key_values if value_of_key is not None]

    def _refuse_unknown(self, name: str, value: ConfigValue) -> None:
        near = nearest(name, (*(key.name for key in self.settable), *self.aliases))
        if near:
            raise self._error(self._wording.misspelled.format(name=name, value=value, near=either(near)))
        keys = some_of(sorted(key.name for key in self.settable))
        raise self._error(self._wording.unknown.format(name=name, value=value, keys=keys))

    def _value(self, key: Key, name: str, value: ConfigValue, base: Path) -> object:
        shown_name = name if self._wording.by_alias else key.name
        try:
            return (
                key.about.read(shown_name, value, base) if key.about.read else self._plain_value(key.kind, value, base)
            )
        except UnexpectedError as error:
            raise self._error(self._wording.wrong.format(name=shown_name, value=value, expected=error)) from error

    def _plain_value(self, kind: type, value: ConfigValue, base: Path) -> object:
        """Return a value as one of `KINDS`. Raises `UnexpectedError`."""
        if self._texts_too and isinstance(value, str):
            value = _typed(kind, value)
        if kind is bool:
            if isinstance(value, bool):
                return value
            raise UnexpectedError("true or false")
        if kind is str:
            if isinstance(value, str):
                return value
            raise UnexpectedError(self._wording.text)
        if kind is Path:
            if isinstance(value, str) and value:
                return base / Path(value).expanduser()
            raise UnexpectedError(self._wording.path)
        if not isinstance(value, bool) and isinstance(value, int if kind is int else int | float):
            return value
        raise UnexpectedError("a whole number" if kind is int else "a number")

    def _check(self, key: Key, config: object) -> None:
        about, value = key.about, getattr(config, key.name)
        if about.choices and value not in about.choices:
            expected = about.expected or f"one of {', '.join(about.choices)}"
            raise self._error(self._wording.wrong.format(name=key.name, value=value, expected=expected))
        if about.bounds is not None and not about.bounds[0] <= value <= about.bounds[1]:
            low, high = about.bounds
            raise self._error(self._wording.outside.format(name=key.name, value=value, low=low, high=high))
        if about.check is not None:
            try:
                about.check(key.name, value)
            except ValueError as error:
                raise self._error(f"{key.name} = {value!r}: {error}") from error


def _by_alias(keys: Mapping[str, Key]) -> dict[str, tuple[tuple[Key, Alias], ...]]:
    keys_by_alias: dict[str, tuple[tuple[Key, Alias], ...]] = {}
    for key in keys.values():
        for alias in key.about.aliases:
            keys_by_alias[alias.name] = (*keys_by_alias.get(alias.name, ()), (key, alias))
    return keys_by_alias


def _typed(kind: type, text: str) -> ConfigValue:
    """Return the number or truth value in a text if `kind` expects one; else the text."""
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and text.isascii() and text.isdecimal():
        return int(text)
    return text
