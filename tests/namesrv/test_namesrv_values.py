"""Values in a name server survive a restart, have a limit, and are on disk before any client can read them."""

import asyncio
import errno
import os
import stat

import pytest
from served_names import connected, is_alone, serving

from dledger_base import loop_guard
from dledger_base.loop_guard import DiskWorkOnLoopError
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.kv import DEFAULT_MAX_BYTES, KVStore, KVStoreError
from dledger_namesrv.server import NameServer, StartError
from dledger_remoting.headers import KVKeyHeader, KVNamespaceHeader, PutKVHeader


async def test_values_survive_a_restart(tmp_path):
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(101, KVKeyHeader("n", "k"))).code == 22
        assert (await client.call(219, KVNamespaceHeader("n"))).code == 22
        assert (await client.call(100, PutKVHeader("n", "k", "ü"))).code == 0
        assert (await client.call(100, PutKVHeader("n", "k2", "2"))).code == 0
        assert (await client.call(102, KVKeyHeader("n", "k2"))).code == 0
        assert (await client.call(102, KVKeyHeader("n", "none"))).code == 0
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(101, KVKeyHeader("n", "k"))).ext == {"value": "ü"}
        assert (await client.call(219, KVNamespaceHeader("n"))).body == '{"table":{"k":"ü"}}'.encode()
        assert (await client.call(102, KVKeyHeader("n", "k"))).code == 0
    assert (tmp_path / "kvConfig.json").read_bytes() == b'{"configTable":{}}', "deleted values leave nothing behind"


async def test_order_configuration_reaches_brokers_and_routes(tmp_path):
    async with serving(tmp_path, order_message_enable=True) as server, connected(server) as client:
        await client.call(100, PutKVHeader("ORDER_TOPIC_CONFIG", "T1", "broker-0:4"))
        assert (await client.register()).body == b'{"table":{"T1":"broker-0:4"}}'
        assert b'"orderTopicConf":"broker-0:4"' in (await client.route()).body
        assert b"orderTopicConf" not in (await client.route("TBW102")).body


async def test_a_damaged_file_of_values_stops_the_start(tmp_path):
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(KVStoreError, match=r"kvConfig\.json cannot be read"):
        await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
    assert not (tmp_path / "pid").exists()


async def test_values_are_stored_up_to_a_limit(server, client):
    """Larger values would make answers, also those to registrations, that no frame can hold."""
    eighth = "v" * (DEFAULT_MAX_BYTES // 8)
    for number in range(1, 8):
        assert (await client.call(100, PutKVHeader("n", f"k{number}", eighth))).code == 0
    code, remark = await client.refusal(100, PutKVHeader("n", "k8", eighth))
    assert (code, "more than max_stored_bytes = 1048576: delete some first" in remark) == (1, True)
    assert server.counters.limits["max_stored_bytes"] == 1
    assert (await client.call(102, KVKeyHeader("n", "k1"))).code == 0
    assert (await client.call(100, PutKVHeader("n", "k8", eighth))).code == 0


async def test_a_client_that_leaves_takes_no_stored_value_of_another_with_it(tmp_path, slow_disk):
    """The leaving client's value is still being written when the other client's value arrives."""
    slow_disk.begin()
    async with serving(tmp_path) as server, connected(server) as other:
        async with connected(server) as leaver:
            leaver.send(100, PutKVHeader("n", "first", "1"))
            await slow_disk.writing.wait()
        await is_alone(server)
        opaque = other.send(100, PutKVHeader("n", "second", "2"))
        await asyncio.sleep(0.1)
        slow_disk.go_on.set()
        answer = await other.receive()
        assert (answer.opaque, answer.code) == (opaque, 0)
        assert (await other.call(100, PutKVHeader("n", "third", "3"))).code == 0
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(101, KVKeyHeader("n", "second"))).ext["value"] == "2"


async def test_no_other_server_has_the_directory_before_the_last_value_is_stored(tmp_path, slow_disk, monkeypatch):
    """The other server would start without the value, and overwrite it."""
    monkeypatch.setattr("dledger_namesrv.server.STOP_GRACE_S", 0.01)
    server = NameServer(NameServerConfig(port=0, data=tmp_path))
    await server.start()
    async with connected(server) as client:
        slow_disk.begin()
        client.send(100, PutKVHeader("n", "k", "v"))
        await slow_disk.writing.wait()
        stopping = asyncio.create_task(server.stop())
        assert await client.is_closed()
        await asyncio.wait((stopping,), timeout=0.2)
        with pytest.raises(StartError, match="in use by process"):
            await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
        slow_disk.go_on.set()
        await stopping
    async with serving(tmp_path) as after, connected(after) as client:
        assert (await client.call(101, KVKeyHeader("n", "k"))).ext["value"] == "v"


async def test_values_that_cannot_be_written_are_refused_and_not_seen(tmp_path, client, server):
    (tmp_path / "kvConfig.tmp").mkdir()
    code, remark = await client.refusal(100, PutKVHeader("n", "k", "v"))
    assert (code, "cannot be written" in remark) == (1, True)
    assert (await client.call(101, KVKeyHeader("n", "k"))).code == 22


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("stored", [{}, {"k": "former"}])
def test_a_value_that_was_refused_is_not_there_after_a_restart(tmp_path, monkeypatch, stored, failures):
    """The sync of the directory fails, either once, or again when the former file is restored."""
    values = KVStore(tmp_path)
    for key, value in stored.items():
        values.put("n", key, value)
    sync, failed = os.fsync, []

    def failing(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and len(failed) < failures:
            failed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(KVStoreError, match="cannot be written") as refused:
        values.put("n", "k", "refused")
    assert ("after a loss of power" in str(refused.value)) == (failures == 2 or not stored)
    assert values.namespace("n") == KVStore(tmp_path).namespace("n") == stored


async def test_a_file_that_is_replaced_on_the_event_loop_is_found_out(tmp_path):
    values = KVStore(tmp_path)
    with pytest.raises(DiskWorkOnLoopError, match="kvConfig"):
        values.put("space", "key", "value")
    loop_guard.violations.clear()
    assert list(tmp_path.iterdir()) == []
    await asyncio.to_thread(values.put, "space", "key", "value")
    assert KVStore(tmp_path).get("space", "key") == "value"
