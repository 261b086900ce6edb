"""Access control of a name server: a rogue broker or client changes nothing, and every client may read."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from unittest.mock import Mock

import pytest
from served_names import A, B, connected, serving

from dledger_base.access_keys import access_keys
from dledger_namesrv.access import OF_NODES, NameServerAccess
from dledger_namesrv.config import ConfigError, NameServerConfig, read_files
from dledger_namesrv.processors import Processors
from dledger_remoting.accounts import NODE, ROOT, node_secret, root_credentials
from dledger_remoting.codes import OPEN_CODES, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import NoPermission
from dledger_remoting.signatures import Credentials, signed
from tests.access_keys import KEY_FILE

CLUSTER: Final = root_credentials(access_keys(KEY_FILE))
NODES: Final = Credentials(NODE, node_secret(access_keys(KEY_FILE)[0]))
CHANGES: Final = {
    RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER, RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.QUERY_DATA_VERSION, RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.BROKER_HEARTBEAT, RequestCode.DLEDGER_FORGET_GROUP, RequestCode.DLEDGER_TOPIC_CHANGES,
}  # fmt: skip
"""Requests that a rogue must not send: all codes except those that only read."""
ACCESS: Final = NameServerAccess(access_keys(KEY_FILE))


def refusal(request: RemotingCommand) -> str:
    with pytest.raises(NoPermission) as refused:
        ACCESS.require(request, "10.0.0.9:1")
    return refused.value.remark


def test_every_code_is_open_or_needs_the_key_file(tmp_path: Path) -> None:
    processors = Processors(NameServerConfig(data=tmp_path), Mock(), Mock(), lambda: 0)
    served = {RequestCode.REGISTER_BROKER, *processors._immediate_processors, *processors._waiting_processors}
    assert (served - OPEN_CODES, OPEN_CODES - served) == (CHANGES, set())


@pytest.mark.parametrize("code", sorted({*CHANGES, 9_999}))
def test_requests_that_change_anything_need_the_cluster_key(code: int) -> None:
    def request(account: str, secret: str) -> RemotingCommand:
        ext = signed({"topic": "T1"}, b"body", Credentials(account, secret))
        return RemotingCommand(code, ext=ext, body=b"body", version=479)

    assert refusal(RemotingCommand(code, body=b"body")).startswith("username cannot be null.")
    assert refusal(request("app", CLUSTER.secret)).startswith("User:app is not found.")
    assert refusal(request(ROOT, "another secret")).startswith("check signature failed.")
    right = request(ROOT, CLUSTER.secret)
    ACCESS.require(right, "10.0.0.9:1")
    right.body = b"other"
    assert refusal(right).startswith("check signature failed.")


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_the_nodes_account_registers_nodes_and_does_nothing_else(code: int) -> None:
    request = RemotingCommand(code, ext=signed({"topic": "T1"}, b"", NODES), version=479)
    if code in OF_NODES:
        ACCESS.require(request, "10.0.0.9:1")
    else:
        assert refusal(request).startswith("User:dledger.node is not found.")


def test_read_only_requests_need_no_key_and_without_a_key_file_everything_is_open() -> None:
    for code in OPEN_CODES:
        ACCESS.require(RemotingCommand(code), "10.0.0.9:1")
    for code in CHANGES:
        NameServerAccess().require(RemotingCommand(code), "10.0.0.9:1")


@pytest.mark.parametrize("text", ["", "c2hvcnQ=", "ü"])
def test_a_key_file_without_a_whole_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="access_key_file"):
        read_files(NameServerConfig(access_key_file=path))


async def test_a_rogue_broker_of_a_later_term_takes_no_route(tmp_path: Path) -> None:
    async with serving(tmp_path, access_key_file=KEY_FILE) as server, connected(server) as client:
        client.credentials = CLUSTER
        assert (await client.register(0, A, term=1)).code == ResponseCode.SUCCESS
        client.credentials = None
        answer = await client.register(0, B, term=99)
        assert (answer.code, (answer.remark or "").startswith("username cannot be null.")) == (16, True)
        route = await client.route()
        assert route.code == ResponseCode.SUCCESS
        assert A.encode() in route.body
        assert B.encode() not in route.body
