"""Secrets that are sealed: which keys open them, and that no byte of a secret shows anywhere."""

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
from dledger_base.access_keys import KeyFileWatch, access_keys, key_id
from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.accounts.sealing import KeyFile, SealError, new_key, read_key_file
from dledger_broker.features.accounts.table import ACCOUNTS
from dledger_broker.frontend.http import with_features
from dledger_remoting.accounts import ROOT
from dledger_remoting.command import RemotingCommand
from dledger_remoting.signatures import Credentials, signed
from tests.access_keys import KEY_FILE

SEALED = KEYS.seal("secret", "app")
"""Sealed secret. It is sealed only once, because Hypothesis's choices depend on it."""
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)


@given(SECRETS, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_sealed_secret_opens_for_its_own_account_only(secret: str, account: str) -> None:
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


def test_a_change_of_unused_base64_bits_is_noticed() -> None:
    """The last letter before `==` has four bits that mean nothing."""
    sealed = KEYS.seal("secret", "app")
    letter = sealed[-3]
    assert sealed.endswith("==")
    assert letter in "AQgw"
    with pytest.raises(SealError):
        KEYS.open(f"{sealed[:-3]}{chr(ord(letter) + 1)}==", "app")


def test_older_keys_open_secrets_and_the_first_key_seals_secrets(tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    old, both = _keys(tmp_path / "old", first), _keys(tmp_path / "keys", "# rotated", second, "", first, "")
    assert both.open(old.seal("secret", "app"), "app") == "secret"
    with pytest.raises(SealError, match="which the key file does not have"):
        old.open(both.seal("secret", "app"), "app")
    assert first not in repr(both)


def test_a_key_can_be_changed_while_a_broker_runs_without_refusing_an_account() -> None:
    """The test does every step of `dledger account new-key --help`, and shows what remains after a key is lost."""
    old, new = bytes(32), bytes(range(32))
    broker = guarded()
    keys = broker.service.parts[AccountRequests].changes.keys
    assert keys is not None
    account = make_account(broker, "app")

    def asks(who: Credentials) -> int:
        return call(broker.client(), who, 10, {"topic": "T1"}).code

    def reseal() -> RemotingCommand:
        return call(broker.client(), root(keys), 3002, {"username": "app"}, b"{}")

    def sealed() -> str:
        return broker.table(ACCOUNTS).get("app").put.sealed

    def root(file: KeyFile) -> Credentials:
        return Credentials(ROOT, file.root_secrets[0])

    before, first = asks(account), access_keys(KEY_FILE)
    for step in ([*first, new], [new, *first]):
        keys.replace(step)
        assert (asks(account), asks(ROOT_CREDENTIALS)) == (before, asks(root(KEYS)))
        assert reseal().code == 0
        assert sealed().startswith(key_id(step[0]))
    keys.replace([new])
    assert asks(account) == before
    assert asks(ROOT_CREDENTIALS) == 16, "the old key is worth nothing"
    keys.replace([old])
    assert reseal().remark.endswith("give the account another secret (dledger account rotate)")
    assert call(broker.client(), root(keys), 3002, {"username": "app"}, b'{"password":"secret-of-app"}').code == 0
    assert asks(account) == before


def test_two_secrets_of_an_account_are_valid_during_a_rotation() -> None:
    broker = guarded()
    first = make_account(broker, "app")
    second, third = (Credentials("app", f"secret {number}") for number in (2, 3))

    def change(**said: str) -> RemotingCommand:
        return call(broker.client(), ROOT_CREDENTIALS, 3002, {"username": "app"}, json.dumps(said).encode())

    def accepted() -> list[bool]:
        """Return, for each of the three secrets, whether its signatures are accepted."""
        asked = (call(broker.client(), who, 10, {"topic": "T1"}) for who in (first, second, third))
        return ["check signature failed" not in (answer.remark or "") for answer in asked]

    assert change(password=second.secret, earlierSecret="kept").code == 0
    assert accepted() == [True, True, False]
    assert change().code == 0, "both are sealed anew"
    assert accepted() == [True, True, False]
    assert change(password=third.secret, earlierSecret="kept").code == 0
    assert accepted() == [False, True, True], "two count at most"
    assert change(earlierSecret="dropped").code == 0
    assert accepted() == [False, False, True]
    assert change(password=first.secret).code == 0
    assert accepted() == [True, False, False]
    assert "none is said" in (change(earlierSecret="kept").remark or "")
    assert change(earlierSecret="both").code != 0


def test_a_changed_key_file_is_read_again_and_an_unusable_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, first, second = tmp_path / "keys", new_key(), new_key()
    _keys(path, first)
    watch, told = KeyFileWatch(path), list[int]()
    watch.on_change = lambda keys: told.append(len(keys))
    for text, changed in ((first, False), (f"{second}\n{first}", True), ("no key", False), ("no key", False)):
        path.write_text(text)
        assert watch.refresh() == changed
    path.unlink()
    assert not watch.refresh()
    assert (told, len(watch.keys)) == ([2], 2)
    assert caplog.text.count("event=access_keys_refused") == 2
    assert first not in caplog.text


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


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_key_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(new_key())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"access_key_file .* has mode {mode:04o}, .*: chmod 600 it"):
        read_key_file(path)


def test_a_secret_appears_in_no_answer_log_line_metric_status_or_snapshot(caplog: pytest.LogCaptureFixture) -> None:
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
        # A refusal names an account as the client has named it, which here is by a secret.
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
