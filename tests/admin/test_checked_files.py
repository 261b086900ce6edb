"""`dledger config check` reads the files that a configuration names, as a start does, and reports what is wrong."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_admin.cluster.toml_text import dump
from dledger_base.issuing import Authority, write_private
from dledger_broker.config import KEYS as BROKER_KEYS
from dledger_broker.config import load_config as load_broker_config
from dledger_broker.errors import ConfigError as BrokerConfigError
from dledger_broker.node import Broker
from dledger_namesrv.config import KEYS as NAMESRV_KEYS
from dledger_namesrv.config import ConfigError as NamesrvConfigError
from dledger_namesrv.config import load_config as load_namesrv_config
from dledger_namesrv.server import NameServer
from tests.access_keys import KEY_FILE
from tests.revocations import revocation_list

TLS = {"tls": "enforcing", "tls_client_certs": "required"}
BROKER = {"broker_group": "g", "node_id": "n0", "data_dir": "data", "namesrv": ["ns:9876"], **TLS}
NAMESRV_FILES = {
    "access_key_file": "access.keys",
    "tls_cert_file": "cert.pem",
    "tls_key_file": "key.pem",
    "tls_client_ca_file": "ca.pem",
    "tls_crl_file": "revoked.pem",
    "metrics_token_file": "metrics.token",
}
BROKER_FILES = {
    "secret_file": "secret",
    **NAMESRV_FILES,
    "tls_namesrv_ca_file": "namesrv-ca.pem",
    "tls_peer_ca_file": "peer-ca.pem",
}
SECRETS = ["secret_file", "access_key_file", "tls_key_file"]
EACH_FILE = [("broker", key) for key in BROKER_FILES] + [("name server", key) for key in NAMESRV_FILES]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Create a folder with all files, and change into it."""
    monkeypatch.chdir(tmp_path)
    authority = Authority("a test", timedelta(days=1))
    authority.issue("127.0.0.1", ["127.0.0.1"]).write(Path("cert.pem"), Path("key.pem"))
    for name in ("ca.pem", "namesrv-ca.pem", "peer-ca.pem"):
        Path(name).write_bytes(authority.certificate)
    Path("revoked.pem").write_bytes(revocation_list(authority))
    write_private(Path("secret"), b"s" * 32)
    write_private(Path("access.keys"), KEY_FILE.read_bytes())
    write_private(Path("metrics.token"), b"token")
    return tmp_path


def configured(of: str, **changes: str) -> Path:
    """Write a configuration that names all files of a component, with changes."""
    file = Path(f"{of.replace(' ', '-')}.toml")
    keys = {**BROKER, **BROKER_FILES} if of == "broker" else {"scan_interval_ms": 5_000, **TLS, **NAMESRV_FILES}
    file.write_text(dump({**keys, **changes}))
    return file


def checked(file: Path) -> tuple[int, str]:
    """Return exit code and output of the check."""
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    return done.exit_code, done.stdout.strip()


def said_at_a_start(of: str, file: Path) -> str:
    """Return the error with which a process refuses to start with a file."""
    process = Broker(load_broker_config(file)) if of == "broker" else NameServer(load_namesrv_config(file, {}))
    with pytest.raises((BrokerConfigError, NamesrvConfigError)) as refused:
        asyncio.run(process.start())
    return str(refused.value)


@pytest.mark.parametrize("of", ["broker", "name server"])
def test_a_configuration_is_good_if_all_named_files_can_be_read(of):
    file = configured(of)
    assert checked(file) == (0, f"{file}: good for a {of}")


def test_every_key_that_names_a_file_is_looked_at():
    for keys, files in ((BROKER_KEYS, BROKER_FILES), (NAMESRV_KEYS, NAMESRV_FILES)):
        named = {key.name for key in keys.by_name.values() if key.kind is Path}
        assert named - {"data_dir", "data"} == files.keys()


@pytest.mark.parametrize(("of", "key"), EACH_FILE)
def test_config_check_names_a_missing_file_as_a_start_does(folder, of, key):
    file = configured(of, **{key: "gone"})
    code, said = checked(file)
    assert (code, said) == (1, f"{file}: {said_at_a_start(of, file)}")
    assert f"{key} gone cannot be read" in said
    assert "No such file or directory" in said
    assert not (folder / "data").exists()
    assert not (folder / "namesrv-data").exists()


@pytest.mark.parametrize(("of", "key"), [one for one in EACH_FILE if one[1] in SECRETS])
def test_config_check_names_a_secret_readable_by_others_as_a_start_does(of, key):
    file = configured(of)
    Path(BROKER_FILES[key]).chmod(0o644)
    code, said = checked(file)
    assert (code, said) == (1, f"{file}: {said_at_a_start(of, file)}")
    assert f"{key} {BROKER_FILES[key]} has mode 0644" in said.replace(": it has mode", " has mode")
    assert "chmod 600" in said


@pytest.mark.parametrize("key", SECRETS)
@pytest.mark.parametrize(
    ("mode", "own_group", "taken"),
    [(0o440, True, True), (0o640, True, True), (0o660, True, False), (0o640, False, False)],
)
def test_a_group_of_the_process_may_read_a_secret_and_no_other_may(key, mode, own_group, taken, monkeypatch):
    """Kubernetes gives secrets to a group of the process (`fsGroup`)."""
    file, secret = configured("broker"), Path(BROKER_FILES[key])
    secret.chmod(mode)
    group = secret.stat().st_gid
    monkeypatch.setattr("os.getegid", lambda: 12_345)
    monkeypatch.setattr("os.getgroups", lambda: [group] if own_group else [])
    code, said = checked(file)
    assert (code == 0) == taken
    assert taken or f"has mode {mode:04o}" in said


@pytest.mark.parametrize("of", ["broker", "name server"])
@pytest.mark.parametrize("key", ["tls_cert_file", "tls_client_ca_file"])
def test_a_certificate_that_has_expired_is_refused(of, key):
    file = configured(of)
    assert checked(file)[0] == 0
    expired = Authority("a test", timedelta(minutes=-1))
    if key == "tls_cert_file":
        expired.issue("127.0.0.1", ["127.0.0.1"]).write(Path("cert.pem"), Path("key.pem"))
    else:
        Path("ca.pem").write_bytes(expired.certificate)
    code, said = checked(file)
    assert (code, said.startswith(f"{file}: {key} ")) == (1, True)
    assert "expired on " in said


@pytest.mark.parametrize(("of", "key"), [one for one in EACH_FILE if one[1] != "metrics_token_file"])
def test_config_check_names_an_invalid_file_as_a_start_does(of, key):
    file = configured(of)
    Path(BROKER_FILES[key]).write_text("nonsense")
    code, said = checked(file)
    assert (code, said) == (1, f"{file}: {said_at_a_start(of, file)}")
    assert f"{key} {BROKER_FILES[key]}" in said


@pytest.mark.parametrize("of", ["broker", "name server"])
def test_a_certificate_that_no_port_shows_is_not_looked_for(of):
    keys = BROKER if of == "broker" else {"scan_interval_ms": 5_000}
    file = Path("plain.toml")
    file.write_text(dump({**keys, "tls": "off", "tls_client_certs": "none", "tls_cert_file": "gone"}))
    assert checked(file)[0] == 0
