"""A client of RocketMQ 4 and one of RocketMQ 5, both unmodified, in one topic and one group at once."""

from __future__ import annotations

import time
from itertools import count

import pytest
import rows
from conftest import MakeClient
from grpc_clients import LACKS, Program
from running_proxy import RunningProxy

from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.parametrize("program", ["java-4.9.8"], indirect=True)

MESSAGES = 40
"""Messages of each client."""
SECONDS = 90.0
NUMBERS = count()


def test_both_send_to_one_topic_and_together_consume_all_of_it(
    apache: MakeClient,
    grpc_client: MakeClient,
    grpc_program: Program,
    proxies: list[RunningProxy],
    quick_group: LocalCluster,
    typed_topic,
) -> None:
    topic, group = typed_topic("NORMAL"), f"Mixed{next(NUMBERS)}-{grpc_program.client.replace('.', '-')}"
    old, new = apache(quick_group.namesrv), grpc_client(proxies[0].address)
    pushes = "push" not in LACKS.get(grpc_program.client, ())
    new.call("push" if pushes else "simple", name="new", group=group, topic=topic)
    old.call("push", name="old", group=group, topic=topic)
    got_by_simple: list[str] = []

    def receive() -> None:
        for message in () if pushes else new.call("receive", name="new"):
            new.call("ack", name="new", message=message["id"])
            got_by_simple.append(message["body"])

    for number in range(MESSAGES):
        assert rows.send(old, topic=topic, body=f"old {number}")["status"] == "SEND_OK"
        new.call("send", topic=topic, body=f"new {number}")
        if number % 10 == 0:
            receive()
    wanted = {f"{sender} {number}" for sender in ("old", "new") for number in range(MESSAGES)}
    deadline = time.monotonic() + SECONDS
    while not {*old.bodies("old"), *new.bodies("new"), *got_by_simple} >= wanted:
        assert time.monotonic() < deadline, "not all came"
        receive()
        time.sleep(0.05)
    assert {*old.bodies("old"), *new.bodies("new"), *got_by_simple} == wanted
