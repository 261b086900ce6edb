"""`dledger config` shows how a process would read a file, before it is started with the file."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_broker.config import load_config as load_broker_config
from dledger_namesrv.config import load_config as load_namesrv_config

BROKER = """
broker_group = "broker-a"
node_id = "broker-a-n0"
data_dir = "node"
secret_file = "secret"
namesrv = ["ns:9876"]
[peers.broker-a-n1]
address = "n1:10912"
"""


@pytest.fixture(autouse=True)
def secret(tmp_path, monkeypatch):
    """Change into a folder with the file that `BROKER` names."""
    monkeypatch.chdir(tmp_path)
    Path("secret").touch(0o600)
    Path("secret").write_bytes(b"s" * 32)


def written(text, name="broker.toml", **how):
    Path(name).write_text(text, **how)
    return Path(name).absolute()


def shown_again(file):
    """Return a file with the output of `config show`."""
    return written(run("show", file).stdout, "again.toml")


def run(*words):
    return CliRunner().invoke(main, ["config", *(str(word) for word in words)])


def test_config_show_prints_a_whole_configuration_that_reads_back_equal(tmp_path):
    file = written(BROKER)
    shown = run("show", file)
    assert shown.exit_code == 0
    table = tomllib.loads(shown.stdout)
    assert (table["port"], table["peer_port"], table["http_port"]) == (10911, 10912, 10913)
    assert table["data_dir"] == str(tmp_path / "node")
    assert load_broker_config(shown_again(file)) == load_broker_config(file)
    told = json.loads(run("show", file, "-o", "json").stdout)
    assert {key: one["value"] for key, one in told.items()} == table
    filtering = written(f'{BROKER}[class_filters]\nLarge = "shop.filters:large"\n')
    assert load_broker_config(shown_again(filtering)).class_filters == {"Large": "shop.filters:large"}


def test_config_show_names_the_source_of_each_value():
    file = written(f"# mine\nbrokerName = 'broker-a'{BROKER.replace('broker_group', '# broker_group')}")
    lines = run("show", file).stdout.splitlines()
    assert 'broker_group = "broker-a"  # line 2, brokerName' in lines
    assert 'node_id = "broker-a-n0"  # line 4' in lines
    assert "port = 10911  # default" in lines
    assert "peer_port = 10912  # other keys" in lines
    assert "[peers]  # line 8" in lines
    told = json.loads(run("show", file, "-o", "json").stdout)
    assert told["broker_group"] == {"value": "broker-a", "from": "file", "line": 2, "name": "brokerName"}
    assert told["port"] == {"value": 10911, "from": "default"}


def test_a_name_servers_command_line_counts_before_its_file():
    file = written('log_format = "json"\n[namesrv]\nport = 9999\nscan_interval_ms = 50\n', "namesrv.toml")
    lines = run("show", file, "--port", 7777).stdout.splitlines()
    assert "port = 7777  # command line" in lines
    assert "scan_interval_ms = 50  # line 4" in lines
    assert 'log_format = "text"  # default' in lines
    file.write_text(BROKER)
    refused = run("show", file, "--port", 7777)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "is a broker's, whose command line has no --port" in refused.stderr


def test_a_name_servers_file_is_known_by_its_keys():
    file = written("listenPort = 9999\n", "namesrv.toml")
    assert tomllib.loads(run("show", file).stdout)["port"] == 9999
    assert load_namesrv_config(shown_again(file), {}) == load_namesrv_config(file, {})


def test_a_rocketmq_name_server_file_can_be_checked_and_shown():
    file = written("# mine\nkvConfigPath=/opt/kvConfig.json\nserverWorkerThreads=8\nlistenPort=9999\n", "namesrv.conf")
    done = run("check", file)
    assert (done.exit_code, done.stdout) == (0, f"{file}: good for a name server\n")
    assert "port = 9999  # line 4, listenPort" in run("show", file).stdout.splitlines()
    file.write_text("kvConfigPath=/opt/kvConfig.json\nserverWrokerThreads=8\n")
    refused = run("check", file)
    assert refused.exit_code == 1
    assert refused.stdout.startswith(f"{file}: serverWrokerThreads = 8: no such key")
    broker_only = written("deleteWhen=04\n", "broker.conf")
    assert run("check", broker_only).stdout.startswith(f"{broker_only}: broker_group is missing")


def test_each_file_that_a_process_would_refuse_is_named_with_the_reason(tmp_path):
    good, bad = written(BROKER, "good.toml"), written(BROKER.replace("data_dir", "datadir"), "bad.toml")
    broken = written("port = ", "broken.toml")
    done = run("check", good, bad, broken, tmp_path / "none.toml")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"{good}: good for a broker"
    assert lines[1] == f"{bad}: unknown key 'datadir', did you mean 'data_dir'?"
    assert "broken.toml is not TOML" in lines[2]
    assert "none.toml cannot be read: No such file" in lines[3]
    assert run("check", good).exit_code == 0
    refused = run("show", bad)
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_a_file_may_begin_with_a_byte_order_mark():
    for name, text in (
        ("broker.toml", BROKER),
        ("broker.conf", "brokerName=b\nnode_id=n\nstorePathRootDir=d\n"),
        ("namesrv.toml", "port = 9876\n"),
        ("namesrv.conf", "listenPort=9876\n"),
    ):
        file = written(text, name, encoding="utf-8-sig")
        done = run("check", file)
        assert (done.exit_code, done.stdout.startswith(f"{file}: good for a ")) == (0, True), done.stdout
        assert run("show", file).exit_code == 0


def test_config_check_accepts_async_flush_with_a_warning():
    done = run("check", written('flush = "async"\nhost = "0.0.0.0"\nadvertised_host = "n0"' + BROKER), "-o", "json")
    assert done.exit_code == 0
    (checked,) = json.loads(done.stdout)
    assert checked["error"] is None
    assert any("before they are on disk" in warning for warning in checked["warnings"])


PROXY = 'namesrv = "ns:9876"\ngrpc_port = 8081\naccount_file = "proxy.account"\n'


@pytest.mark.parametrize("text", [PROXY, f"[proxy]\n{PROXY}", 'namesrv = "ns:9876"\n'])
def test_config_check_knows_a_proxys_file_by_its_keys(text):
    Path("proxy.account").touch(0o600)
    Path("proxy.account").write_text("proxy\nsecret\n")
    file = written(text, "proxy.toml")
    done = run("check", file)
    assert (done.exit_code, done.stdout) == (0, f"{file}: good for a proxy\n")


def test_config_check_reads_the_account_that_a_proxys_file_names_beside_it():
    file = written(PROXY, "proxy.toml")
    done = run("check", file)
    assert done.exit_code == 1
    assert f"{file}: account_file {file.parent}/proxy.account cannot be read" in done.stdout
    file = written(PROXY + "max_requests = 0\n", "proxy.toml")
    assert "max_requests = 0: expected 1 to" in run("check", file).stdout


def test_config_show_names_the_source_of_a_proxys_values():
    file = written(f"[proxy]\n{PROXY}", "proxy.toml")
    lines = run("show", file, "--host", "0.0.0.0").stdout.splitlines()
    assert "grpc_port = 8081  # line 3" in lines
    assert 'host = "0.0.0.0"  # command line' in lines
    assert "max_requests = 4096  # default" in lines
    assert "has no --port" in run("show", file, "--port", "1").output
