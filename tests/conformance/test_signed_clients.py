"""Unmodified stock clients, and ours, sign their requests on a group with access control."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from guarded_groups import APP, ROOT_ACCOUNT, STRANGER, TOPIC, guarded, guarded_group
from stock_clients import StockClientError

from dledger_admin.cli import main
from dledger_client import Credentials, RefusedError, SyncAdmin, SyncConsumer, SyncProducer, SyncPullConsumer
from dledger_client.testing import LocalCluster

__all__ = ["guarded", "guarded_group"]


def test_our_client_sends_and_receives_with_signatures(guarded: LocalCluster) -> None:
    with SyncProducer(guarded.namesrv, group="PG", credentials=APP) as producer:
        producer.send(TOPIC, b"ours")
    with SyncConsumer(guarded.namesrv, "ours", {TOPIC: "*"}, credentials=APP) as consumer:
        assert next(iter(consumer)).body == b"ours"


@pytest.mark.parametrize("who", [None, STRANGER, Credentials("app", "another secret")])
def test_our_client_is_refused_without_its_secret_in_the_error(guarded: LocalCluster, who: Credentials | None) -> None:
    with SyncAdmin(guarded.namesrv, credentials=who) as admin, pytest.raises(RefusedError) as refused:
        admin.create_topic("NotAllowed", queues=1)
    assert "secret" not in str(refused.value)


def test_commands_sign_their_requests_and_show_a_refusal(guarded: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"{APP.access_key}\n{APP.secret}\n")
    account = {"DLEDGER_CREDENTIALS": str(file), "DLEDGER_NAMESRV": guarded.namesrv}
    sent = CliRunner().invoke(main, ["produce", "--topic", TOPIC], input="a line\n", env=account)
    assert sent.exit_code == 0, sent.output
    words = ["consume", "--topic", TOPIC, "--from-beginning", "--exit-eof"]
    assert "a line" in CliRunner().invoke(main, words, env=account).output
    refused = CliRunner().invoke(main, ["produce", "--topic", "Other"], input="never\n", env=account)
    assert refused.exit_code == 1
    assert "has no permission to access Topic:Other" in refused.output
    assert APP.secret not in refused.output


def test_the_cpp_client_signs(guarded: LocalCluster, cpp) -> None:
    client = cpp(guarded.namesrv, APP)
    assert client.call("send", topic=TOPIC, body="cpp")["status"] == 0
    client.call("push", name="reader", group="cpp-signed", topic=TOPIC)
    client.wait_for(lambda: "cpp" in client.bodies("reader"), "the message")
    for other in (None, STRANGER):
        with pytest.raises(StockClientError):
            cpp(guarded.namesrv, other).call("send", topic=TOPIC, body="never")


def test_ali_ons_signs(guarded: LocalCluster, ali_ons) -> None:
    client = ali_ons(guarded.namesrv, APP)
    assert client.call("send", topic=TOPIC, body="ali")["status"] == "SEND_OK"
    client.call("push", name="reader", group="ali-signed", topic=TOPIC)
    client.wait_for(lambda: "ali" in client.bodies("reader"), "the message")
    for other in (None, STRANGER):
        with pytest.raises(StockClientError):
            ali_ons(guarded.namesrv, other).call("send", topic=TOPIC, body="never")


def test_refused_messages_are_not_stored(guarded: LocalCluster) -> None:
    with SyncPullConsumer(guarded.namesrv, "checker", credentials=APP) as consumer:
        queues = consumer.queues(TOPIC)
        consumer.assign(queues)
        consumer.seek_to_begin()
        stored = [message.body for message in consumer.poll(1000, timeout=5.0)]
    assert stored
    assert b"never" not in stored


def test_no_secret_stands_in_any_file_or_page(guarded: LocalCluster) -> None:
    """The test reads all logs, snapshots, views, configuration, the name server's files, status and metrics."""
    held = {str(path): path.read_bytes() for path in guarded.data_dir.rglob("*") if path.is_file()}
    for node_id in guarded.node_ids:
        for page in ("status", "metrics"):
            with urlopen(f"http://127.0.0.1:{guarded._client_port(node_id) + 2}/{page}", timeout=10.0) as answer:
                held[f"{page} of {node_id}"] = answer.read()
    assert any(b"stranger" in data for data in held.values()), "the accounts are somewhere"
    secrets = [who.secret.encode() for who in (APP, STRANGER, ROOT_ACCOUNT)]
    assert [where for where, data in held.items() if any(secret in data for secret in secrets)] == []
