"""In the rig's cluster with two name servers all nodes know both, and each can be killed and comes back."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from dledger_admin.cluster.layout import NamesrvPlace
from dledger_admin.cluster.probes import groups_clients_find
from dledger_chaos.local import LocalTarget
from dledger_chaos.toxiproxy.mesh import NAMESRV, SECOND_NAMESRV
from tests.cluster_checks import eventually

pytestmark = pytest.mark.long


async def knows_the_group(address: str) -> bool:
    place = NamesrvPlace(int(address.rpartition(":")[2]), Path("unused"))
    return await asyncio.to_thread(groups_clients_find, place) == {"broker-a"}


async def test_nodes_register_with_both_and_each_can_be_killed_and_comes_back(tmp_path):
    async with LocalTarget(tmp_path, nodes=1, name_servers=2, with_shim=False) as target:
        addresses = dict(zip(target.others, target.namesrv.split(";"), strict=True))
        assert list(addresses) == [NAMESRV, SECOND_NAMESRV]
        for killed in target.others:
            for name, address in addresses.items():
                await eventually(30.0, f"known at {name}", partial(knows_the_group, address))
            pid = target.pid(killed)
            await target.kill([killed])
            assert pid is not None
            assert target.was_stopped(pid)
            assert [name for name in target.others if target.pid(name) is None] == [killed]
            await target.start_node(killed)
        assert all((tmp_path / "data" / name / "log").glob("*.log") for name in target.others)
        assert len(target.other_logs) == 2
        pids = [target.pid(name) for name in target.others]
    assert None not in pids
    assert [target.pid(name) for name in target.others] == [None, None]
