"""Apache's Java and Go clients, unmodified, sign their requests on a group with access control."""

from __future__ import annotations

import time

import pytest
import rows
from guarded_groups import APP, STRANGER, TOPIC, guarded, guarded_group
from stock_clients import CALL_SECONDS, StockClient, StockClientError

from dledger_client import Credentials
from dledger_client.testing import LocalCluster

__all__ = ["guarded", "guarded_group"]


def test_the_client_sends_and_receives(guarded: LocalCluster, apache, request: pytest.FixtureRequest) -> None:
    client = apache(guarded.namesrv, account=APP)
    body = f"signed by {request.node.name}"
    assert rows.send(client, topic=TOPIC, body=body)["status"] == "SEND_OK"
    client.call("push", name="reader", group=request.node.callspec.id.replace(".", "-"), topic=TOPIC)
    client.wait_for(lambda: body in client.bodies("reader"), "the message")


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (None, "username cannot be null"),
        (STRANGER, "has no permission to access Topic:Signed"),
        (Credentials("app", "another secret"), "check signature failed"),
        (Credentials("nobody", "a secret"), "User:nobody is not found"),
    ],
    ids=["no account", "no right", "another secret", "no such account"],
)
def test_a_refused_client_sees_the_brokers_reason(
    guarded: LocalCluster, apache, who: Credentials | None, words: str
) -> None:
    assert words in refusal(apache(guarded.namesrv, account=who))


def refusal(client: StockClient) -> str:
    """Return the client's error for a send.

    Java's client gives up after 3 s. On a busy machine that error says nothing, so the send is repeated.
    """
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        with pytest.raises(StockClientError) as refused:
            client.call("send", topic=TOPIC, body="never")
        if "call timeout" not in str(refused.value) or time.monotonic() > deadline:
            return str(refused.value)
