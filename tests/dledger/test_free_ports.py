"""Ports for the servers of tests: none is given out twice at a time, in one process or in several."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from dledger.testing.ports import SLICE_PORTS, free_ports

IN_ANOTHER_PROCESS = "from dledger.testing.ports import free_ports; print(*free_ports(50))"


def test_a_port_comes_again_when_all_others_have_been_given_out() -> None:
    ports = [port for _ in range(SLICE_PORTS - 50) for port in free_ports(1)]
    assert len(set(ports)) == len(ports)


def test_another_process_is_given_other_ports() -> None:
    mine = {port for _ in range(2) for port in free_ports(SLICE_PORTS // 2 - 20)}
    done = subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS], capture_output=True, text=True, check=True)
    others = {int(port) for port in done.stdout.split()}
    assert len(others) == 50
    assert not mine & others
    assert {port // SLICE_PORTS for port in mine}.isdisjoint(port // SLICE_PORTS for port in others)


def test_a_port_on_which_somebody_listens_is_left_out() -> None:
    [port] = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert port not in {other for _ in range(2) for other in free_ports(SLICE_PORTS // 2)}


def test_more_ports_than_a_process_has_are_refused() -> None:
    with pytest.raises(OSError, match="ports of this process are free"):
        free_ports(SLICE_PORTS)
