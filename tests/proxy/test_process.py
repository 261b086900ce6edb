"""The proxy as a process: its configuration, start, health, metrics and stop."""

from __future__ import annotations

import http.client
import subprocess
import sys

import pytest
from running_proxy import RunningProxy, is_open

from dledger_client.testing.ports import find_free_block
from dledger_proxy.__main__ import main
from dledger_proxy.config import ConfigError, build_config, load_config

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grpc_prt = 1", "no such key, did you mean 'grpc_port'?"),
        ("grpc_port = 70000", "grpc_port = 70000: expected 0 to 65535"),
        ('namesrv = "nowhere"', "namesrv"),
        ('advertised = "host"', "expected addresses such as proxy-1:8081;proxy-2:8081"),
        ("grpc_port = 5\nmetrics_port = 5", "expected two different ports"),
        ('tls = "enforcing"', "tls_cert_file is missing"),
        ('cluster_ca_file = "ca.pem"', "say nothing without cluster_tls = true"),
        ("max_message_bytes = 300000000", "expected at least"),
        ("grpc_port = ", "not a TOML file"),
        ("proxy = 3", "expected a table"),
    ],
)
def test_a_configuration_that_cannot_be_used_ends_the_start_with_one_line(tmp_path, capsys, text, expected):
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    assert main(["--config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("proxy: ")
    assert expected in line


def test_a_file_may_have_the_keys_in_a_table_and_rocketmqs_names(tmp_path):
    file = tmp_path / "proxy.toml"
    file.write_text('[proxy]\nnamesrvAddr = "10.0.0.1:9876"\ngrpcServerPort = 9000\nmaxMessageSize = 1000\n')
    config = load_config(file, {"host": "0.0.0.0"})
    assert (config.namesrv, config.grpc_port, config.max_message_bytes) == ("10.0.0.1:9876", 9000, 1000)
    assert config.host == "0.0.0.0"


def test_an_account_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        build_config({"account_file": tmp_path / "missing"}).credentials()


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [("proxy\n", 0o600, "its secret in the second"), ("proxy\nsecret\n", 0o644, "chmod 600"), ("", 0o600, "expected")],
)
def test_an_account_file_that_is_unsafe_or_incomplete_is_refused(tmp_path, content, mode, expected):
    file = tmp_path / "account"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=expected):
        build_config({"account_file": file}).credentials()


def test_a_port_that_is_taken_is_one_line_with_what_to_do(tmp_path):
    with RunningProxy(tmp_path / "first", NOBODY) as first:
        port = first.address.rpartition(":")[2]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dledger_proxy", "--namesrv", NOBODY, "--grpc-port", port],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert f"proxy: 127.0.0.1:{port} is already in use: stop what uses it or choose another grpc_port" in done.stderr


def test_a_package_that_is_missing_is_one_line_with_the_command_that_installs_it():
    code = "import sys, runpy; sys.modules['grpclib'] = None; runpy.run_module('dledger_proxy', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("proxy: grpclib")
    assert "pip install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_health_metrics_and_a_stop_by_sigterm(tmp_path):
    port = find_free_block([0])
    proxy = RunningProxy(tmp_path, NOBODY, f"metrics_port = {port}\n")
    proxy.start()
    try:
        assert _get(port, "/healthz") == (200, "ok")
        status, page = _get(port, "/metrics")
        assert status == 200
        for name in ("rocketmq_proxy_up 1.0", "dledger_proxy_connections 0.0", "dledger_proxy_messages_in_total 0.0"):
            assert name in page
        assert proxy.stop() == 0
        assert not is_open(proxy.address)
    finally:
        proxy.kill()


def _get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
