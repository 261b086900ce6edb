"""Secrets that are sealed: what opens them, and that no byte of one shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded_broker import KEYS, make_account
from guarded_broker import guarded_broker as guarded
from hypothesis import given
from hypothesis import strategies as st

from dledger_broker.errors import ConfigError
from dledger_broker.features.accounts.sealing import KeyFile, SealError, new_key, read_key_file

SEALED = KEYS.seal("secret", "app")
"""Sealed once, for what Hypothesis chooses depends on it."""
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)


@given(SECRETS, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_what_is_sealed_is_opened_for_its_account_alone(secret: str, account: str) -> None:
    sealed = KEYS.seal(secret, account)
    assert KEYS.open(sealed, account) == secret
    with pytest.raises(SealError):
        KEYS.open(sealed, account + "x")
    assert KEYS.seal(secret, account) != sealed


@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    place = data.draw(st.integers(SEALED.index(":") + 1, len(SEALED) - 1))
    other = data.draw(st.sampled_from("ABab01+/ \x00").filter(lambda letter: letter != SEALED[place]))
    with pytest.raises(SealError):
        KEYS.open(SEALED[:place] + other + SEALED[place + 1 :], "app")


def test_bits_of_base64_that_mean_nothing_are_noticed() -> None:
    """The last letter before `==` has four of them."""
    sealed = KEYS.seal("secret", "app")
    letter = sealed[-3]
    assert sealed.endswith("==")
    assert letter in "AQgw"
    with pytest.raises(SealError):
        KEYS.open(f"{sealed[:-3]}{chr(ord(letter) + 1)}==", "app")


def test_older_keys_open_and_the_first_one_seals(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    first, second = new_key(), new_key()
    path.write_text(f"# rotated\n{second}\n\n{first}\n")
    old, both = _keys(tmp_path / "old", first), read_key_file(path)
    assert both.open(old.seal("secret", "app"), "app") == "secret"
    with pytest.raises(SealError, match="which the key file does not have"):
        old.open(both.seal("secret", "app"), "app")
    assert first not in repr(both)


def _keys(path: Path, *lines: str) -> KeyFile:
    path.touch(0o600)
    path.write_text("\n".join(lines))
    return read_key_file(path)


@pytest.mark.parametrize("text", ["", "# nothing", "c2hvcnQ=", "no base64!", "ü"])
def test_a_key_file_without_a_whole_key_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="access_key_file"):
        _keys(tmp_path / "keys", text)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key_file(tmp_path / "absent")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(new_key())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"access_key_file .* has mode {mode:04o}, .*: chmod 600 it"):
        read_key_file(path)


def test_no_secret_stands_in_the_log_or_a_snapshot() -> None:
    broker = guarded()
    make_account(broker, "app")
    machine = broker.memory.machine
    stored = b"".join(bytes(part) for part in machine.snapshot())
    for held in (stored, bytes(broker.memory.log.data)):
        assert b"app" in held
        assert b"secret-of-app" not in held
