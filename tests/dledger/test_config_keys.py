"""A key is declared once. Parsing, errors, the source of a value, and the page's table follow from the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger_base.config_keys.declared import Alias, ConfigValue, UnexpectedError, key, needed
from dledger_base.config_keys.origins import Origin, lines_of_properties, lines_of_toml, origins
from dledger_base.config_keys.page import table_of
from dledger_base.config_keys.reading import Keys, Wording
from dledger_base.invariants import InvariantError


class RefusedError(Exception):
    """Error of the component in these tests."""


def words(_name: str, value: ConfigValue, _base: Path) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise UnexpectedError("words")
    return tuple(value.split())


@dataclass(frozen=True, kw_only=True)
class Place:
    """A section."""

    name: str = field(metadata=needed("its name", "it names the thing", aliases=(Alias("stockName"),)))
    folder: Path = key(Path("f"), "where it lies")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Another section."""

    pause_ms: int = key(
        10, "a pause", consequence="then it ends", bounds=(2, 100), below=("limit_ms", "it would be late"), live=True
    )
    limit_ms: int = key(50, "an end", bounds=(2, 100), aliases=(Alias("stockLimit", note="in ms"),))
    room_bytes: int = key(1 << 20, "room for a | b", bounds=(0, 1 << 31))
    ratio: float = key(0.5, "a share", bounds=(0.1, 0.9))
    mode: str = key("a", "a mode", choices=("a", "b"), aliases=(Alias("stockMode", words={"AA": "a", "BB": "b"}),))
    said: tuple[str, ...] = key((), "words", takes="words", read=words)
    table: Mapping[str, str] = key({}, "a table", read=lambda _name, value, _base: value)


@dataclass(frozen=True, kw_only=True)
class Config(Place, Sizes):
    """Both sections."""


KEYS = Keys(Config, RefusedError)


def build(table: dict[str, ConfigValue]) -> Config:
    values = KEYS.read({"name": "n", **table}, Path("/etc")).values
    KEYS.require(values)
    config = Config(**values)
    KEYS.check(config)
    return config


def test_values_have_the_types_of_their_fields_and_paths_count_from_the_file():
    config = build({"folder": "x", "ratio": 0.25, "said": "a b", "mode": "b"})
    assert (config.folder, config.ratio, config.said, config.mode) == (Path("/etc/x"), 0.25, ("a", "b"), "b")
    assert config.table == {}
    assert config.table is not build({}).table


def test_keys_stand_in_the_order_of_the_sections():
    assert list(KEYS.by_name)[:4] == ["name", "folder", "pause_ms", "limit_ms"]
    assert {key.section for key in KEYS.by_name.values()} == {Place, Sizes}


def test_aliases_of_a_key_are_accepted():
    assert build({"stockLimit": 60, "limit_ms": 60, "stockMode": "BB"}).limit_ms == 60
    assert KEYS.called("stockLimit") == KEYS.called("limit_ms") == "limit_ms"
    assert KEYS.live == ["pause_ms"]


def test_a_component_may_use_its_own_wording_and_accept_quoted_numbers():
    keys = Keys(Config, RefusedError, texts_too=True, wording=Wording(wrong="{name}: {expected}!", by_alias=True))
    assert keys.read({"stockLimit": "60"}).values == {"limit_ms": 60}
    with pytest.raises(RefusedError, match=r"^stockLimit: a whole number!$"):
        keys.read({"stockLimit": "-60"})


def test_a_field_that_declares_no_key_is_a_fault():
    @dataclass(frozen=True)
    class Bare:
        number: int = 3

    with pytest.raises(InvariantError):
        Keys(Bare, RefusedError)


def test_each_value_comes_from_a_line_the_command_line_or_its_default():
    text = '# a\n\nname = """\npause_ms = 3\n"""\nstockLimit = 60\nsaid = [\n  "x",\n]\n[table]\nx = "1"\n'
    lines = lines_of_toml(text)
    assert lines == {"name": 3, "stockLimit": 6, "said": 7, "table": 10}
    reading = KEYS.read({"name": "n", "stockLimit": 60, "folder": "x"})
    found = origins(KEYS, reading, lines, flags=("folder",))
    assert found["limit_ms"] == Origin("file", 6, "stockLimit")
    assert found["folder"] == Origin("command line")
    assert found["pause_ms"] == Origin("default")


def test_settings_are_located_by_line_within_their_table():
    assert lines_of_toml("port = 1\n[namesrv]\nhost = 'a'\nport = 2\n", "namesrv") == {"host": 3, "port": 4}
    assert lines_of_toml("\nport = 1\n", "namesrv") == {"port": 2}
    assert lines_of_properties("# a\n a = 1\n!b\n\nb=2\na=3\n") == {"a": 6, "b": 5}


def test_a_bar_in_a_text_does_not_end_its_cell():
    assert "| `room_bytes` | `1048576` | 0 to 2 GiB | room for a \\| b |" in table_of(KEYS.by_name.values())
