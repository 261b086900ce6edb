"""No file of a debug bundle holds a secret, however the secret came there."""

from __future__ import annotations

import json
import tarfile

import pytest
from command_fakes import refused
from hypothesis import given
from hypothesis import strategies as st

from dledger_admin.bundle.archive import Archive
from dledger_admin.bundle.secrets import REMOVED, Scrubber, secrets_in

SECRET = "k3y-that-nobody-may-see"


@pytest.fixture
def scrubber(tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\nalso: {SECRET[::-1]}\n")
    return Scrubber(secrets_in([file]))


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_known_secret_is_removed_wherever_it_stands(before, after):
    assert SECRET.encode() not in Scrubber([SECRET.encode()]).scrub(before + SECRET.encode() + after)


def test_every_secret_of_a_file_is_known(scrubber):
    for secret in (SECRET, SECRET[::-1]):
        assert scrubber.scrub(f"event=x reason='{secret}!'".encode()) == b"event=x reason='" + REMOVED + b"!'"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('metrics_token = "abc"', 'metrics_token = "[secret removed]"'),
        ("  secretKey: abc", '  secretKey: "[secret removed]"'),
        ('"password": "abc",', '"password": "[secret removed]",'),
        ('secret_file = "/run/secret"', 'secret_file = "/run/secret"'),
        ("port = 1", "port = 1"),
    ],
)
def test_values_of_keys_that_are_called_like_a_secret_are_removed_and_paths_stay(line, shown):
    assert Scrubber([]).scrub(line.encode()).decode() == shown


def test_private_keys_are_removed_and_certificates_stay():
    certificate = b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
    key = b"-----BEGIN PRIVATE KEY-----\nBB\n-----END PRIVATE KEY-----\n"
    assert Scrubber([]).scrub(certificate + key) == certificate + REMOVED + b"\n"


def test_the_name_of_an_account_is_no_secret(tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"orders-application\n{SECRET}\n")
    assert secrets_in([file, tmp_path / "absent"]) == {SECRET.encode()}


def test_a_bundle_says_what_it_lacks_and_hides_secrets_in_reasons_too(tmp_path, scrubber):
    path = tmp_path / "b.tar.gz"
    with Archive(path, "1", scrubber) as archive:
        archive.add("a.txt", SECRET.encode())
        archive.lacks("node", f"refused {SECRET}")
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
        assert {member.mode for member in tar} == {0o600}
    assert not [name for name, data in files.items() if SECRET.encode() in data]
    assert json.loads(files["b/manifest.json"])["missing"] == [{"what": "node", "why": f"refused {REMOVED.decode()}"}]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_bundle_that_fails_leaves_no_file(tmp_path):
    def fail():
        with Archive(tmp_path / "b.tar.gz", "1", Scrubber([])):
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_replaces_no_file_and_verify_needs_a_directory(tmp_path):
    file = tmp_path / "there"
    file.write_text("mine")
    assert "exists" in refused("debug", "bundle", "--into", file)
    assert "--verify goes with --data" in refused("debug", "bundle", "--verify", code=2)
    assert file.read_text() == "mine"
