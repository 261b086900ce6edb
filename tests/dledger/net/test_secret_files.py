"""The file with a group's secret: one, or two while it is changed; it is read again while a node runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dledger.errors import ConfigError
from dledger_base.secret import SecretFile, read_secrets

OLD, NEW = b"the old secret of the group", b"the new secret of the group"


def written(path: Path, content: bytes) -> Path:
    """Put a private file in place."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return path


@pytest.mark.parametrize(
    ("content", "secrets"),
    [
        (OLD + b"\n", (OLD,)),
        (OLD + b"\nalso: " + NEW + b"\n", (OLD, NEW)),
        (b"\xef\xbb\xbf" + OLD + b"\r\n\r\nalso:" + NEW + b"\r\n", (OLD, NEW)),
        (b"also: " + OLD, (b"also: " + OLD,)),
        (OLD + b"\n" + NEW, (OLD + b"\n" + NEW,)),  # as `openssl rand -base64 64` writes one
    ],
)
def test_a_file_holds_one_secret_or_two(tmp_path: Path, content: bytes, secrets: tuple[bytes, ...]) -> None:
    assert read_secrets(written(tmp_path / "secret", content)) == secrets


@pytest.mark.parametrize(
    ("more", "text"),
    [(b"short\n", "holds a secret of 5 bytes, at least 16"), (NEW + b"\nalso: " + OLD, "holds 3 secrets, at most 2")],
)
def test_a_short_or_third_secret_is_refused(tmp_path: Path, more: bytes, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_secrets(written(tmp_path / "secret", OLD + b"\nalso: " + more))


def test_a_changed_file_is_read_again_and_one_that_cannot_be_used_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "secret", OLD)
    file = SecretFile(path)
    assert not file.refresh()
    for unusable in (b"short", b""):
        written(path, unusable)
        assert not file.refresh()
        assert file.all == (OLD,)
    written(path, NEW + b"\nalso: " + OLD)
    with caplog.at_level("INFO"):
        assert file.refresh()
    assert file.all == (NEW, OLD)
    assert file.first == NEW
    assert "event=group_secret_loaded accepted=2" in caplog.text
    assert NEW.decode() not in caplog.text
