"""The files of `up --secure` are private and complete, and stay the same at the next start."""

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from dledger_admin.cluster.bootstrap import founding_manifest
from dledger_admin.cluster.config_files import Overrides, broker_table, namesrv_table
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.lifecycle import ClusterSetup, RunningCluster, UpOptions
from dledger_admin.cluster.manifest import read_manifest
from dledger_admin.cluster.securing import Asked, how_to_connect, make_secure, secure_folder
from dledger_admin.errors import AdminError
from dledger_broker.config import build_config as build_broker_config
from dledger_client import Tls
from dledger_namesrv.config import build_config as build_namesrv_config


@pytest.fixture
def layout(tmp_path):
    (tmp_path / "data").mkdir()
    return ClusterLayout(tmp_path / "data")


def contents(layout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in secure_folder(layout).iterdir()}


def test_secrets_and_data_are_readable_by_their_owner_only_or_refused(layout):
    make_secure(layout)
    modes = {path.name: path.stat().st_mode & 0o777 for path in secure_folder(layout).iterdir()}
    assert {name for name, mode in modes.items() if mode != 0o600} == {"ca.pem", "node.pem"}
    assert secure_folder(layout).stat().st_mode & 0o777 == 0o700
    assert layout.data_dir.stat().st_mode & 0o777 == 0o700, "messages lie there as they are"
    (secure_folder(layout) / "access.keys").chmod(0o644)
    with pytest.raises(AdminError, match="chmod"):
        make_secure(layout)


def prepared(tmp_path, ports, config=None, **asked) -> ClusterSetup:
    base_port, namesrv_port = ports
    options = UpOptions(tmp_path / "data", 1, 1, namesrv_port, base_port, config, None, Asked(**asked))
    return ClusterSetup.prepare(options)


@pytest.fixture
def secured(tmp_path, monkeypatch, ports):
    """Return a cluster that was secured at its first start, with a configuration that turns TLS on for HTTP."""
    monkeypatch.setattr(RunningCluster, "spawn", lambda _: None)
    (tmp_path / "extra.toml").write_text("tls_http = true\n")
    setup = prepared(tmp_path, ports, tmp_path / "extra.toml", secure=True)
    setup.start()
    return setup.layout


@pytest.mark.parametrize("knows", [True, False], ids=["by-its-manifest", "by-what-is-left"])
@pytest.mark.parametrize(
    ("lost", "option"),
    [
        (["node.pem"], "renew_certificates"),
        (["ca.pem", "node-key.pem"], "renew_certificates"),
        (["access.keys"], "new_key_file"),
        (["access.keys", "node.pem"], None),
    ],
)
def test_a_secured_cluster_recreates_a_missing_file_only_on_request(secured, tmp_path, ports, lost, option, knows):
    if not knows:  # an earlier version founded it
        path = secured.data_dir / "cluster.json"
        path.write_text(path.read_text().replace('"secured": true', '"format": 1'))
    before = contents(secured)
    for name in lost:
        (secure_folder(secured) / name).unlink()
    for asked in ({}, {"new_key_file": True}, {"renew_certificates": True}):
        if option not in asked:
            with pytest.raises(AdminError, match=lost[0] if not asked else "secure"):
                prepared(tmp_path, ports, **asked)
    asked = {option: True} if option else {"new_key_file": True, "renew_certificates": True}
    setup = prepared(tmp_path, ports, **asked)
    setup.start()
    changed = {name for name, content in contents(secured).items() if content != before[name]}
    assert changed >= set(lost)
    assert ("ca.pem" in changed) == ("renew_certificates" in asked)
    assert ("access.keys" in changed) == ("new_key_file" in asked)
    assert "access_key_file" in (secured.data_dir / "broker-a-n0" / "broker.toml").read_text()
    assert read_manifest(secured.data_dir).secured


def test_a_secured_cluster_without_keys_and_a_renewal_of_an_open_one_are_refused(secured, tmp_path, ports):
    shutil.rmtree(secure_folder(secured))
    with pytest.raises(AdminError, match=r"access\.keys is missing"):
        prepared(tmp_path, ports)
    with pytest.raises(AdminError, match="--secure"):
        prepared(tmp_path / "open", ports, renew_certificates=True)


def test_an_interrupted_first_start_keeps_the_generated_access_keys(secured, tmp_path, ports):
    (secured.data_dir / "cluster.json").write_text(
        (secured.data_dir / "cluster.json").read_text().replace('"secured": true', '"format": 1')
    )
    keys = contents(secured)["access.keys"]
    for name in ("node-key.pem", "node.pem"):
        (secure_folder(secured) / name).unlink()
    prepared(tmp_path, ports, secure=True).start()
    assert contents(secured)["access.keys"] == keys, "secrets of accounts are sealed with it"


def test_processes_use_tls_and_access_keys_only_in_a_secured_cluster(layout):
    manifest = founding_manifest(layout, None, 1 << 20)
    place = layout.places()[0]
    assert not [key for key in broker_table(layout, manifest, place, Overrides()) if "tls" in key or "access" in key]
    assert not [key for key in namesrv_table(layout, manifest, Overrides()) if "tls" in key or "access" in key]
    make_secure(layout)
    manifest = msgspec.structs.replace(manifest, secured=True)
    broker = build_broker_config(broker_table(layout, manifest, place, Overrides()))
    name_server = build_namesrv_config(namesrv_table(layout, manifest, Overrides()))
    assert broker.tls == name_server.tls == "enforcing"
    assert None not in (broker.server_context(), broker.name_server_context(), broker.peer_contexts())
    assert broker.access_key_file == Path(name_server.access_key_file)


def test_five_lines_explain_how_to_connect_without_the_secret(layout):
    make_secure(layout)
    lines = how_to_connect(layout)
    assert [line.partition(":")[0] for line in lines] == ["secured", "dledger", "Python", "Java", "mqadmin"]
    secret = contents(layout)["credentials"].decode().splitlines()[1]
    assert secret not in "".join(lines)
    for path in re.findall(rf"{re.escape(str(secure_folder(layout)))}/[\w.]+", "\n".join(lines)):
        assert Path(path).exists()
    assert Tls(secure_folder(layout) / "ca.pem").context()


def test_client_env_is_rewritten_with_the_ports_of_each_start(tmp_path, monkeypatch, ports):
    """This also holds if that start has no --secure."""
    monkeypatch.setattr(RunningCluster, "spawn", lambda _: None)
    told = []
    base_port, namesrv_port = ports
    for namesrv, secure in ((namesrv_port, True), (namesrv_port + 1, False)):
        options = UpOptions(
            tmp_path / "data", groups=1, nodes=1, namesrv_port=namesrv, base_port=base_port, asked=Asked(secure)
        )
        setup = ClusterSetup.prepare(options)
        setup.start()
        told.append((setup.layout.namesrv_address, contents(setup.layout)["client.env"].decode()))
    assert told[0][0] != told[1][0]
    assert all(f"DLEDGER_NAMESRV={address}\n" in text for address, text in told)
