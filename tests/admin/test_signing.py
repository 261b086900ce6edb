"""The account for which commands sign: its sources. No error shows its secret."""

import pytest
from command_fakes import fails_in_one_line, use_fakes

from dledger_admin.commands.signing import signing
from dledger_client import Credentials, Tls


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)


def test_the_account_is_that_of_the_named_file_or_none(monkeypatch, tmp_path):
    monkeypatch.delenv("DLEDGER_CREDENTIALS", raising=False)
    assert signing() == {}
    file = tmp_path / "credentials"
    file.write_text("app\nsecret of app\nmore\n")
    monkeypatch.setenv("DLEDGER_CREDENTIALS", str(file))
    assert signing() == {"credentials": Credentials("app", "secret of app")}


@pytest.mark.parametrize("content", [b"", b"planted", b"planted\n\n", b"\nplanted\n", b"planted\n\xff\n"])
def test_a_file_without_both_is_refused_and_not_shown(monkeypatch, tmp_path, content):
    file = tmp_path / "credentials"
    file.write_bytes(content)
    monkeypatch.setenv("DLEDGER_CREDENTIALS", str(file))
    told = fails_in_one_line("pin", "list")
    assert "DLEDGER_CREDENTIALS" in told
    assert "planted" not in told
    monkeypatch.setenv("DLEDGER_CREDENTIALS", str(tmp_path / "absent"))
    assert "No such file" in fails_in_one_line("pin", "list")


def test_tls_is_spoken_if_authorities_are_named(monkeypatch, tmp_path):
    for name in ("DLEDGER_TLS_CA", "DLEDGER_TLS_CERT", "DLEDGER_TLS_KEY", "DLEDGER_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    assert "tls" not in signing()
    monkeypatch.setenv("DLEDGER_TLS_CA", "ca.pem")
    assert signing() == {"tls": Tls("ca.pem")}
    monkeypatch.setenv("DLEDGER_TLS_CERT", "cert.pem")
    monkeypatch.setenv("DLEDGER_TLS_KEY", "key.pem")
    assert signing() == {"tls": Tls("ca.pem", "cert.pem", "key.pem")}
