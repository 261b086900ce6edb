"""`dledger config check` reads the files that a configuration names, as a start does, and says what is wrong."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_admin.cluster.toml_text import dump
from dledger_broker.config import KEYS as BROKER_KEYS
from dledger_broker.config import load_config as load_broker_config
from dledger_broker.errors import ConfigError as BrokerConfigError
from dledger_broker.node import Broker
from dledger_namesrv.config import KEYS as NAMESRV_KEYS
from dledger_namesrv.config import ConfigError as NamesrvConfigError
from dledger_namesrv.config import load_config as load_namesrv_config
from dledger_namesrv.server import NameServer
from dledger_serving.issuing import Authority, write_private
from tests.access_keys import KEY_FILE

TLS = {"tls": "enforcing", "tls_client_certs": "required"}
BROKER = {"broker_group": "g", "node_id": "n0", "data_dir": "data", "namesrv": ["ns:9876"], **TLS}
NAMESRV_FILES = {
    "access_key_file": "access.keys",
    "tls_cert_file": "cert.pem",
    "tls_key_file": "key.pem",
    "tls_client_ca_file": "ca.pem",
}
BROKER_FILES = {
    "secret_file": "secret",
    **NAMESRV_FILES,
    "tls_namesrv_ca_file": "namesrv-ca.pem",
    "tls_peer_ca_file": "peer-ca.pem",
}
EACH_FILE = [("broker", key) for key in BROKER_FILES] + [("name server", key) for key in NAMESRV_FILES]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with all files, from where everything is started."""
    monkeypatch.chdir(tmp_path)
    authority = Authority("a test", timedelta(days=1))
    authority.issue("127.0.0.1", ["127.0.0.1"]).write(Path("cert.pem"), Path("key.pem"))
    for name in ("ca.pem", "namesrv-ca.pem", "peer-ca.pem"):
        Path(name).write_bytes(authority.certificate)
    write_private(Path("secret"), b"s" * 32)
    write_private(Path("access.keys"), KEY_FILE.read_bytes())
    return tmp_path


def configured(of: str, **changes: str) -> Path:
    """A file that names all that a component can, with changes."""
    file = Path(f"{of.replace(' ', '-')}.toml")
    keys = {**BROKER, **BROKER_FILES} if of == "broker" else {"max_watch_ms": 60_000, **TLS, **NAMESRV_FILES}
    file.write_text(dump({**keys, **changes}))
    return file


def checked(file: Path) -> tuple[int, str]:
    """The exit code and what is said."""
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    return done.exit_code, done.stdout.strip()


def said_at_a_start(of: str, file: Path) -> str:
    """Why a process does not start with a file."""
    process = Broker(load_broker_config(file)) if of == "broker" else NameServer(load_namesrv_config(file, {}))
    with pytest.raises((BrokerConfigError, NamesrvConfigError)) as refused:
        asyncio.run(process.start())
    return str(refused.value)


@pytest.mark.parametrize("of", ["broker", "name server"])
def test_a_file_is_good_if_all_that_it_names_can_be_read(of):
    file = configured(of)
    assert checked(file) == (0, f"{file}: good for a {of}")


def test_every_key_that_names_a_file_is_looked_at():
    for keys, files in ((BROKER_KEYS, BROKER_FILES), (NAMESRV_KEYS, NAMESRV_FILES)):
        named = {key.name for key in keys.by_name.values() if key.kind is Path}
        assert named - {"data_dir", "data"} == files.keys()


@pytest.mark.parametrize(("of", "key"), EACH_FILE)
def test_a_file_that_is_not_there_is_named_with_its_key_in_the_words_of_a_start(folder, of, key):
    file = configured(of, **{key: "gone"})
    code, said = checked(file)
    assert (code, said) == (1, f"{file}: {said_at_a_start(of, file)}")
    assert f"{key} gone cannot be read" in said
    assert "No such file or directory" in said
    assert not (folder / "data").exists()
    assert not (folder / "namesrv-data").exists()


@pytest.mark.parametrize(
    ("of", "key"), [one for one in EACH_FILE if one[1] in {"secret_file", "access_key_file", "tls_key_file"}]
)
def test_a_secret_that_others_may_read_is_named_in_the_words_of_a_start(of, key):
    file = configured(of)
    Path(BROKER_FILES[key]).chmod(0o644)
    code, said = checked(file)
    assert (code, said) == (1, f"{file}: {said_at_a_start(of, file)}")
    assert f"{key} {BROKER_FILES[key]} has mode 0644" in said.replace(": it has mode", " has mode")
    assert "chmod 600" in said


@pytest.mark.parametrize(("of", "key"), EACH_FILE)
def test_a_file_with_something_else_in_it_is_named_in_the_words_of_a_start(of, key):
    file = configured(of)
    Path(BROKER_FILES[key]).write_text("nonsense")
    code, said = checked(file)
    assert (code, said) == (1, f"{file}: {said_at_a_start(of, file)}")
    assert f"{key} {BROKER_FILES[key]}" in said


@pytest.mark.parametrize("of", ["broker", "name server"])
def test_a_certificate_that_no_port_shows_is_not_looked_for(of):
    keys = BROKER if of == "broker" else {"max_watch_ms": 60_000}
    file = Path("plain.toml")
    file.write_text(dump({**keys, "tls": "off", "tls_client_certs": "none", "tls_cert_file": "gone"}))
    assert checked(file)[0] == 0
