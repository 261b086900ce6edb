"""Image, compose file and node configurations agree with each other, as far as that shows without an engine."""

import re
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

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


def test_group_has_three_nodes_that_dial_each_other() -> None:
    assert len(NODES) == 3
    for name, config in NODES.items():
        assert config["node_id"] == name
        expected = {other: {"address": f"{other}:{NODES[other]['peer_port']}"} for other in NODES if other != name}
        assert config["peers"] == expected


@pytest.mark.parametrize("key", ["cluster", "broker_group", "secret_file", "namesrv", "data_dir"])
def test_nodes_agree_on_what_is_the_groups(key: str) -> None:
    assert len({str(config[key]) for config in NODES.values()}) == 1


@pytest.mark.parametrize("name", NODES)
def test_service_publishes_the_ports_of_its_configuration_on_this_machine_only(name: str) -> None:
    config, lines = NODES[name], service(name)
    assert f"/etc/dledger/{name}.toml" in lines
    published = re.findall(r'- "([\d.:]+)"', lines)
    assert published == [f"127.0.0.1:{config[key]}:{config[key]}" for key in ("port", "http_port")]
    assert config["advertised_port"] == config["port"]


@pytest.mark.parametrize("name", NODES)
def test_nodes_advertise_the_address_that_they_have_in_the_compose_network(name: str) -> None:
    (subnet,) = re.findall(r"- subnet: (\S+)", COMPOSE)
    (others,) = re.findall(r"ip_range: (\S+)", COMPOSE)
    address = NODES[name]["advertised_host"]
    assert f"ipv4_address: {address}\n" in service(name)
    assert ip_address(address) in ip_network(subnet)
    assert ip_address(address) not in ip_network(others)


def test_the_name_server_is_published_at_the_ports_of_its_configuration() -> None:
    config, lines = tomllib.loads((DOCKER / "config" / "namesrv.toml").read_text()), service("namesrv")
    published = re.findall(r'- "([\d.:]+)"', lines)
    assert published == [f"127.0.0.1:{config[key]}:{config[key]}" for key in ("port", "http_port")]


def test_founding_a_group_is_never_part_of_a_plain_start() -> None:
    assert "--bootstrap" not in COMPOSE + DOCKERFILE
    assert (DOCKER / "bootstrap.yaml").read_text().count('"--bootstrap"]') == 1


def test_the_image_has_one_health_check_for_whatever_runs_in_it() -> None:
    assert DOCKERFILE.count("\nHEALTHCHECK ") == 1
    assert not re.search(r"healthcheck:\n +test:", COMPOSE)


def test_the_base_image_is_named_by_its_exact_version() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}"}
