"""`dledger config`: what a process would make of a file, before it is started with it."""

import json
import tomllib

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
def secret(tmp_path):
    """The file that `BROKER` names, beside the files of a test."""
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(b"s" * 32)


def run(*words):
    return CliRunner().invoke(main, ["config", *(str(word) for word in words)])


def test_what_is_shown_is_the_whole_configuration_and_the_same_when_it_is_read_again(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(BROKER)
    shown = run("show", file)
    assert shown.exit_code == 0
    table = tomllib.loads(shown.stdout)
    assert (table["port"], table["peer_port"], table["http_port"]) == (10911, 10912, 10913)
    assert table["data_dir"] == str(tmp_path / "node")
    again = tmp_path / "again.toml"
    again.write_text(shown.stdout)
    assert load_broker_config(again) == load_broker_config(file)
    told = json.loads(run("show", file, "-o", "json").stdout)
    assert {key: one["value"] for key, one in told.items()} == table


def test_each_value_says_where_it_comes_from(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(f"# mine\nbrokerName = 'broker-a'{BROKER.replace('broker_group', '# broker_group')}")
    lines = run("show", file).stdout.splitlines()
    assert 'broker_group = "broker-a"  # line 2, brokerName' in lines
    assert 'node_id = "broker-a-n0"  # line 4' in lines
    assert "port = 10911  # default" in lines
    assert "peer_port = 10912  # other keys" in lines
    assert "[peers]  # line 8" in lines
    told = json.loads(run("show", file, "-o", "json").stdout)
    assert told["broker_group"] == {"value": "broker-a", "from": "file", "line": 2, "name": "brokerName"}
    assert told["port"] == {"value": 10911, "from": "default"}


def test_values_of_rocketmqs_own_file_say_where_they_come_from(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\n\n#\nlistenPort=20911\nnode_id=n0\ndata_dir=d\n")
    assert "port = 20911  # line 4, listenPort" in run("show", file).stdout.splitlines()


def test_a_name_servers_command_line_counts_before_its_file(tmp_path):
    file = tmp_path / "namesrv.toml"
    file.write_text('log_format = "json"\n[namesrv]\nport = 9999\nmax_in_flight = 5\n')
    lines = run("show", file, "--port", 7777).stdout.splitlines()
    assert "port = 7777  # command line" in lines
    assert "max_in_flight = 5  # line 4" in lines
    assert 'log_format = "text"  # default' in lines
    file.write_text(BROKER)
    refused = run("show", file, "--port", 7777)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "is a broker's, whose command line has no --port" in refused.stderr


def test_code_of_class_filters_is_shown_as_it_is_read(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text(f'{BROKER}[class_filters]\nLarge = "shop.filters:large"\n')
    again = tmp_path / "again.toml"
    again.write_text(run("show", file).stdout)
    assert load_broker_config(again).class_filters == {"Large": "shop.filters:large"}


def test_a_name_servers_file_is_known_by_its_keys(tmp_path):
    file = tmp_path / "namesrv.toml"
    file.write_text("listenPort = 9999\n")
    assert tomllib.loads(run("show", file).stdout)["port"] == 9999
    again = tmp_path / "again.toml"
    again.write_text(run("show", file).stdout)
    assert load_namesrv_config(again, {}) == load_namesrv_config(file, {})


def test_rocketmqs_own_file_is_checked_and_shown_by_our_names(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerName=broker-a\nlistenPort=20911\nnode_id=n0\ndata_dir={tmp_path}\n")
    assert run("check", file).exit_code == 0
    assert tomllib.loads(run("show", file).stdout)["port"] == 20911


def test_rocketmqs_own_file_of_a_name_server_is_checked_and_shown_as_one(tmp_path):
    file = tmp_path / "namesrv.conf"
    file.write_text("# mine\nkvConfigPath=/opt/kvConfig.json\nserverWorkerThreads=8\nlistenPort=9999\n")
    done = run("check", file)
    assert (done.exit_code, done.stdout) == (0, f"{file}: good for a name server\n")
    assert "port = 9999  # line 4, listenPort" in run("show", file).stdout.splitlines()
    file.write_text("kvConfigPath=/opt/kvConfig.json\nserverWrokerThreads=8\n")
    refused = run("check", file)
    assert refused.exit_code == 1
    assert refused.stdout.startswith(f"{file}: serverWrokerThreads = 8: no such key")


def test_a_file_with_a_key_without_effect_that_only_brokers_have_is_a_brokers(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("deleteWhen=04\n")
    assert run("check", file).stdout.startswith(f"{file}: broker_group is missing")


def test_each_file_that_a_process_would_refuse_is_named_with_the_reason(tmp_path):
    good, bad, broken = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "broken.toml"
    good.write_text(BROKER)
    bad.write_text(BROKER.replace("data_dir", "datadir"))
    broken.write_text("port = ")
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


def test_what_is_allowed_and_should_be_known_is_a_warning(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text('flush = "async"\nhost = "0.0.0.0"\nadvertised_host = "n0"' + BROKER)
    done = run("check", file, "-o", "json")
    assert done.exit_code == 0
    (checked,) = json.loads(done.stdout)
    assert checked["error"] is None
    assert any("before they are on disk" in warning for warning in checked["warnings"])
