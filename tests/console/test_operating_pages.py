"""Pages for operators on a cluster without access control: leaders, quotas, configuration, clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from served_console import Visitor

from dledger_client import Decision, OpenTransaction, Producer, PushConsumer, SyncAdmin, TransactionProducer
from tests.waiting import wait_until


@pytest.fixture
def admin(cluster) -> Iterator[SyncAdmin]:
    with SyncAdmin(cluster.namesrv) as started:
        yield started


def test_a_node_without_peers_is_not_drained_and_the_page_says_why(visitor: Visitor) -> None:
    visitor.go("/broker-groups/broker-a")
    page = visitor.press("Preview the drain", node="broker-a-n0")
    assert page.response.status_code == 409
    assert "no other voter of broker group broker-a is caught up: broker-a-n0 has to go on leading" in page.text
    visitor.go("/broker-groups/broker-a")
    page = visitor.press("Preview the move", node="broker-a-n9")
    assert "broker-a-n9 is no member of broker group broker-a; its members are broker-a-n0" in page.text


def test_a_quota_is_set_shown_and_deleted_each_after_a_preview(visitor: Visitor, admin: SyncAdmin) -> None:
    visitor.go("/quotas")
    limits = {"kind": "topic", "name": "limited", "messages": "5", "bytes": ""}
    page = visitor.press("Preview the quota", **limits)
    assert "sends of topic limited on broker-a are held beyond 5 messages per second" in page.text
    assert admin.quotas() == {"broker-a": []}
    assert "The quota of topic limited is set." in visitor.press("Do it").text
    (line,) = visitor.read("/quotas?q=LIMIT")["quotas"]
    assert (line["name"], line["messages_per_second"], line["held"]) == ("limited", 5, 0)
    page = visitor.press("Delete", kind="topic", name="limited")
    assert "the quota of topic limited on broker-a, 5 messages per second" in page.text
    visitor.press("Do it")
    assert admin.quotas() == {"broker-a": []}
    visitor.go("/quotas")
    page = visitor.press("Preview the quota", kind="topic", name="limited", messages="", bytes="")
    assert (page.response.status_code, "needs a limit" in page.text) == (409, True)


def test_the_configuration_says_where_each_value_comes_from_and_a_live_key_is_set_and_removed(
    visitor: Visitor, admin: SyncAdmin
) -> None:
    def shown(key: str) -> dict[str, object]:
        (value,) = [one for one in visitor.read(f"/configuration?q={key}")["values"] if one["key"] == key]
        return value

    assert shown("node_id")["source"] == "the node's own configuration"
    assert shown("retention_hours")["source"] == "default"
    visitor.go("/configuration")
    page = visitor.press("Preview the setting", key="retention_hours", value="48")
    assert "retention_hours is 48 on all nodes of broker-a, at once and after restarts" in page.text
    assert admin.settings() == {"broker-a": {}}
    page = visitor.press("Do it")
    assert "Key retention_hours is set to 48 on broker group broker-a." in page.text
    assert (shown("retention_hours")["value"], shown("retention_hours")["source"]) == ("48", "set for the group")
    assert admin.settings() == {"broker-a": {"retention_hours": "48"}}
    page = visitor.press("Preview the setting", key="retention_hours", value="")
    assert "retention_hours is no longer 48 on broker-a: each node's own file counts again" in page.text
    visitor.press("Do it")
    assert admin.settings() == {"broker-a": {}}
    visitor.go("/configuration")
    page = visitor.press("Preview the setting", key="data_dir", value="/tmp")
    assert (page.response.status_code, "no key that can be set while nodes run" in page.text) == (409, True)


def test_clients_are_listed_and_a_consumer_tells_its_stacks(cluster, visitor: Visitor, admin: SyncAdmin) -> None:
    admin.create_topic("watched-topic", queues=1)

    async def look() -> None:
        consumer = PushConsumer(cluster.namesrv, "watched", "watched-topic")
        async with Producer(cluster.namesrv, group="watchers") as producer, consumer:
            await producer.send("watched-topic", b"x")
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, visitor.read, "/clients?q=watche")
            assert {(one["group"], one["role"]) for one in found["clients"]} == {
                ("watched", "consumes"),
                ("watchers", "produces"),
            }
            page = await loop.run_in_executor(None, visitor.go, "/clients?q=watched")
            (path,) = [link for link in page.links if "/members/" in link]
            member = await loop.run_in_executor(None, visitor.go, path)
            assert member.response.status_code == 200, member.text
            assert "What it does at this moment" in member.text
            assert "test_operating_pages.py" in member.text  # where this test waits

    asyncio.run(look())
    page = visitor.go("/consumer-groups/watched/members/nobody")
    assert page.response.status_code == 404
    assert "consumer group watched has no member nobody now" in page.text


def test_without_access_control_there_are_no_accounts_and_the_pages_say_so(visitor: Visitor) -> None:
    assert "Access control is off" in visitor.go("/accounts").text
    for path in ("/accounts/nobody", "/may?account=a&resource=Topic:t"):
        page = visitor.go(path)
        assert (page.response.status_code, "access control is off" in page.text) == (409, True), path


def test_the_log_page_says_that_nothing_is_corrupt_and_what_retention_takes(visitor: Visitor) -> None:
    page = visitor.go("/logs")
    assert "Integrity: nothing corrupt is known." in page.text
    assert "Retention: retention takes nothing: the log has one segment" in page.text
    (log,) = visitor.read("/logs")["logs"]
    (replica,) = log["replicas"]
    assert (replica["corrupt_bytes"], replica["repairs"], replica["rotten_snapshots"]) == (0, 0, 0)


def test_the_audit_page_names_who_changed_what_and_is_searched_on_the_server(
    visitor: Visitor, admin: SyncAdmin
) -> None:
    admin.create_topic("audited", queues=1)
    wait_until(lambda: visitor.read("/audit?q=audited")["entries"], 30.0)
    (entry, *_) = visitor.read("/audit?q=AUDITED")["entries"]
    assert (entry["who"], entry["what"], entry["outcome"]) == ("nobody", "UPDATE_AND_CREATE_TOPIC", "done")
    assert "UPDATE_AND_CREATE_TOPIC" in visitor.go("/audit?q=audited").text
    assert visitor.read("/audit?q=no-such-word")["entries"] == []


def test_a_late_group_says_for_how_long_its_oldest_message_waits(visitor: Visitor) -> None:
    found = visitor.read("/consumer-groups/billing")
    assert found["lag"]["messages"] > 0
    assert found["lag"]["seconds"] > 0
    assert max(found["delays"].values()) == found["lag"]["seconds"]
    assert len(found["lags"]["messages"]) >= 1
    assert "Lag in time" in visitor.go("/consumer-groups/billing").text


def test_a_tail_shows_what_a_tag_or_an_expression_chooses(visitor: Visitor, admin: SyncAdmin) -> None:
    admin.create_topic("tailed", queues=1)
    for tag, body in (("a", "first"), ("b", "second"), ("a", "third")):
        visitor.go("/messages?topic=tailed")
        visitor.press("Preview the message", body=body, tag=tag, confirm="yes")

    def bodies(query: str) -> list[str]:
        return [one["beginning"] for one in visitor.read(f"/tail?topic=tailed{query}")["messages"]]

    assert bodies("") == ["third", "second", "first"]
    assert bodies("&tag=a") == ["third", "first"]
    assert bodies("&sql=TAGS+%3D+%27b%27") == ["second"]
    page = visitor.go("/tail?topic=tailed&tag=a&sql=x+%3D+1")
    assert (page.response.status_code, "name one of them" in page.text) == (409, True)
    assert visitor.go("/tail?topic=no-such-topic").response.status_code == 404


def test_a_delayed_message_is_listed_and_recalled_after_a_preview(cluster, visitor: Visitor, admin: SyncAdmin) -> None:
    admin.create_topic("for-later", queues=1)

    async def send() -> str:
        async with Producer(cluster.namesrv, group="later") as producer:
            return (await producer.send("for-later", b"later", delay_s=3600)).message_id

    key = asyncio.run(send())
    found = visitor.read("/delayed")
    assert (found["pending"], [one["unique_key"] for one in found["messages"]]) == (1, [key])
    assert visitor.read("/delayed?q=no-such-topic")["messages"] == []
    page = visitor.go("/delayed")
    page = visitor.press("Recall")
    assert f"message {key} of topic for-later, which is due at" in page.text
    assert visitor.read("/delayed")["pending"] == 1
    assert f"Message {key} of topic for-later is recalled" in visitor.press("Do it").text
    assert visitor.read("/delayed")["messages"] == []
    token = {"X-CSRF-Token": visitor.token()}
    answer = visitor.http.post("/api/change/recall", json={"handle": "none"}, headers=token)
    assert (answer.status_code, "recall handle is invalid" in answer.json()["detail"]) == (409, True)


def test_an_open_transaction_is_listed_until_its_producer_decides(cluster, visitor: Visitor, admin: SyncAdmin) -> None:
    admin.create_topic("perhaps", queues=1)

    async def begin() -> None:
        loop = asyncio.get_running_loop()

        async def check(_: OpenTransaction) -> Decision:
            return "unknown"

        async with TransactionProducer(cluster.namesrv, group="deciders", check=check) as producer:
            begun = await producer.begin("perhaps", b"maybe")
            (half,) = (await loop.run_in_executor(None, visitor.read, "/transactions"))["halves"]
            assert (half["topic"], half["producer_group"], half["checks"]) == ("perhaps", "deciders", 0)
            await producer.rollback(begun)
            assert (await loop.run_in_executor(None, visitor.read, "/transactions"))["halves"] == []

    asyncio.run(begin())
