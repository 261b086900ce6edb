"""Image, compose file and node configurations agree with each other, as far as a test without an engine can tell."""

import re
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from dledger_proxy.config import load_config

DOCKER = Path(__file__).resolve().parents[2] / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = (DOCKER / "compose.yaml").read_text()
NODES = {path.stem: tomllib.loads(path.read_text()) for path in sorted((DOCKER / "config").glob("broker-*.toml"))}


def service(name: str) -> str:
    """Return the lines of one service of the compose file."""
    match = re.search(rf"^  {name}:\n((?:    .*\n)+)", COMPOSE, re.MULTILINE)
    assert match is not None, name
    return match[1]


def test_image_runs_unprivileged_and_stops_by_draining() -> None:
    final_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER dledger\n" in final_stage
    assert "\nSTOPSIGNAL SIGTERM\n" in final_stage
    assert re.search(r'^ENTRYPOINT \["dledger"\]$', final_stage, re.MULTILINE)


@pytest.mark.parametrize("name", [*NODES, "namesrv"])
def test_service_publishes_the_ports_of_its_configuration_on_this_machine_only(name: str) -> None:
    config, lines = tomllib.loads((DOCKER / "config" / f"{name}.toml").read_text()), service(name)
    published = re.findall(r'- "([\d.:]+)"', lines)
    assert published == [f"127.0.0.1:{config[key]}:{config[key]}" for key in ("port", "http_port")]
    if name in NODES:
        assert f"/etc/dledger/{name}.toml" in lines
        assert config["advertised_port"] == config["port"]


def test_proxy_publishes_the_ports_of_its_configuration_on_this_machine_only_and_finds_the_name_server() -> None:
    config, lines = tomllib.loads((DOCKER / "config" / "proxy.toml").read_text()), service("proxy")
    published = re.findall(r'- "([\d.:]+)"', lines)
    assert published == [f"127.0.0.1:{config[key]}:{config[key]}" for key in ("grpc_port", "http_port", "metrics_port")]
    assert '"proxy", "--config", "/etc/dledger/proxy.toml"' in lines
    name_server = tomllib.loads((DOCKER / "config" / "namesrv.toml").read_text())
    assert config["namesrv"] == f"namesrv:{name_server['port']}"
    grace_s = int(re.findall(r"stop_grace_period: (\d+)s", lines)[0])
    assert grace_s * 1000 > load_config(DOCKER / "config" / "proxy.toml", {}).drain_timeout_ms


@pytest.mark.parametrize("name", NODES)
def test_nodes_advertise_the_address_that_they_have_in_the_compose_network(name: str) -> None:
    (subnet,) = re.findall(r"- subnet: (\S+)", COMPOSE)
    (others,) = re.findall(r"ip_range: (\S+)", COMPOSE)
    address = NODES[name]["advertised_host"]
    assert f"ipv4_address: {address}\n" in service(name)
    assert ip_address(address) in ip_network(subnet)
    assert ip_address(address) not in ip_network(others)


def test_founding_a_group_is_never_part_of_a_plain_start() -> None:
    assert "--bootstrap" not in COMPOSE + DOCKERFILE
    assert (DOCKER / "bootstrap.yaml").read_text().count('"--bootstrap"]') == 1
