"""What `up --secure` makes is private, whole, and the same at the next start."""

import re
from pathlib import Path

import pytest

from dledger_admin.cluster.bootstrap import founding_manifest
from dledger_admin.cluster.config_files import Overrides, broker_table, namesrv_table
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.lifecycle import ClusterSetup, RunningCluster, UpOptions
from dledger_admin.cluster.securing import how_to_connect, is_secured, make_secure, secure_folder
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


def test_what_is_secret_can_be_read_by_its_owner_alone(layout):
    make_secure(layout)
    modes = {path.name: path.stat().st_mode & 0o777 for path in secure_folder(layout).iterdir()}
    public = {"ca.pem", "node.pem"}
    assert {name for name, mode in modes.items() if mode != 0o600} == public
    assert secure_folder(layout).stat().st_mode & 0o777 == 0o700
    assert layout.data_dir.stat().st_mode & 0o777 == 0o700, "messages lie there as they are"


def test_a_key_file_that_others_may_read_is_told_in_one_line(layout):
    make_secure(layout)
    (secure_folder(layout) / "access.keys").chmod(0o644)
    with pytest.raises(AdminError, match="chmod"):
        make_secure(layout)


def test_a_second_time_changes_nothing(layout):
    make_secure(layout)
    before = contents(layout)
    make_secure(layout)
    assert contents(layout) == before


def test_what_an_interrupted_start_has_left_out_is_made_later(layout):
    make_secure(layout)
    keys = contents(layout)["access.keys"]
    (secure_folder(layout) / "node.pem").unlink()
    assert not is_secured(layout)
    make_secure(layout)
    assert is_secured(layout)
    assert contents(layout)["access.keys"] == keys, "secrets of accounts are sealed with it"


def test_every_process_is_configured_for_it_and_none_of_another_cluster(layout):
    manifest = founding_manifest(layout, None, 1 << 20)
    place = layout.places()[0]
    assert not [key for key in broker_table(layout, manifest, place, Overrides()) if "tls" in key or "access" in key]
    assert not [key for key in namesrv_table(layout, Overrides()) if "tls" in key or "access" in key]
    make_secure(layout)
    broker = build_broker_config(broker_table(layout, manifest, place, Overrides()))
    name_server = build_namesrv_config(namesrv_table(layout, Overrides()))
    assert broker.tls == name_server.tls == "enforcing"
    assert None not in (broker.server_context(), broker.name_server_context(), broker.peer_contexts())
    assert broker.access_key_file == Path(name_server.access_key_file)


def test_five_lines_say_how_to_connect_and_no_secret(layout):
    assert how_to_connect(layout) == []
    make_secure(layout)
    lines = how_to_connect(layout)
    assert [line.partition(":")[0] for line in lines] == ["secured", "dledger", "Python", "Java", "mqadmin"]
    secret = contents(layout)["credentials"].decode().splitlines()[1]
    assert secret not in "".join(lines)
    for path in re.findall(rf"{re.escape(str(secure_folder(layout)))}/[\w.]+", "\n".join(lines)):
        assert Path(path).exists()
    assert Tls(secure_folder(layout) / "ca.pem").context()


def test_the_variables_for_a_shell_follow_the_ports_at_each_start(tmp_path, monkeypatch, ports):
    """Also where that does not say --secure again."""
    monkeypatch.setattr(RunningCluster, "spawn", lambda _: None)
    told = []
    base_port, namesrv_port = ports
    for namesrv, secure in ((namesrv_port, True), (namesrv_port + 1, False)):
        options = UpOptions(
            tmp_path / "data", groups=1, nodes=1, namesrv_port=namesrv, base_port=base_port, secure=secure
        )
        setup = ClusterSetup.prepare(options)
        setup.start()
        told.append((setup.layout.namesrv_address, contents(setup.layout)["client.env"].decode()))
    assert told[0][0] != told[1][0]
    assert all(f"DLEDGER_NAMESRV={address}\n" in text for address, text in told)
