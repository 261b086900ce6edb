"""Secrets that are sealed: what opens them, and that no byte of one shows."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest
from guarded_broker import KEYS, ROOT_CREDENTIALS, call, make_account
from guarded_broker import guarded_broker as guarded
from hypothesis import given
from hypothesis import strategies as st
from served_broker import send_ext

from dledger.errors import ConfigError
from dledger_broker.features.accounts.sealing import KeyFile, SealError, new_key, read_key_file
from dledger_broker.kernel.node_status import with_features
from dledger_remoting.signatures import Credentials, signed

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


def test_a_secret_is_in_nothing_that_anybody_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Logs, answers and refusals, errors of what carries it, metrics, status, snapshots and ranges of the log."""
    caplog.set_level(logging.DEBUG)
    broker = guarded()
    who, client = make_account(broker, "app"), broker.client()
    secret, machine = who.secret, broker.memory.machine
    user = {"username": "app", "password": secret}
    asked: list[tuple[Credentials | None, int, dict[str, str], object]] = [
        (who, 310, send_ext("T1"), None),
        (Credentials("app", "wrong"), 310, send_ext("T1"), None),
        (Credentials(secret, secret), 310, send_ext("T1"), None),
        (ROOT_CREDENTIALS, 3001, {"username": "app"}, user),
        (ROOT_CREDENTIALS, 3001, {"username": "x" * 200}, user),
        (ROOT_CREDENTIALS, 3002, {"username": "app"}, {**user, "userType": "Nobody"}),
        (ROOT_CREDENTIALS, 3002, {"username": "app"}, [secret]),
        (ROOT_CREDENTIALS, 50, {"accessKey": "app", "secretKey": secret, "topicPerms": "T1=ALL"}, None),
        (ROOT_CREDENTIALS, 50, {"accessKey": "app", "secretKey": secret * 200}, None),
        *((ROOT_CREDENTIALS, code, {"username": "app", "subject": "User:app", "filter": ""}, None)
          for code in (26, 54, 3004, 3005, 3009, 3010)),
    ]  # fmt: skip
    shown = []
    for account, code, ext, body in asked:
        answer = call(client, account, code, ext, b"" if body is None else json.dumps(body).encode())
        told = f"{answer.code} {answer.remark} {answer.ext} {answer.body!r}"
        # An account is named as who asks has named it, which here is by a secret.
        shown.append(told.replace(f"User:{secret} is not found", ""))
    logged = caplog.text.replace(f"User:{secret} is not found", "")
    end = str(broker.memory.log.end)
    ranged = client.call_from_disk(20_011, signed({"roles": "leader", "start": "0", "end": end}, b"", ROOT_CREDENTIALS))
    numbers = [(gauge.name, gauge.read()) for part in broker.service.parts for gauge in part.gauges]
    status = msgspec.json.encode(with_features(broker.memory.node.status(), machine.state)).decode()
    snapshot = b"".join(bytes(part) for part in machine.snapshot())
    assert (ranged.code, b"app" in ranged.body, b"app" in snapshot) == (0, True, True)
    for where in (*shown, logged, repr(numbers), status, repr(ranged.body), repr(snapshot), repr(machine.state)):
        assert secret not in where
