"""Fronts before a real cluster: any of them goes on where another has stopped."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

from cluster_fronts import proxy, send, settle, take
from http_fronts import JSON, Caller

from dledger_client import Admin, Producer, PullConsumer, Quota
from dledger_client.testing import LocalCluster
from dledger_proxy.http.handles import Receipt
from dledger_remoting.pop import CheckPoint, Retry


async def test_a_message_is_taken_at_one_proxy_and_acknowledged_at_another(cluster: LocalCluster) -> None:
    async with proxy(cluster.namesrv) as one:
        await send(one, "shared", "a", "b")
        taken = await take(one, "shared", "workers")
        assert sorted(message["text"] for message in taken) == ["a", "b"]
    async with proxy(cluster.namesrv) as other:  # the first proxy is gone
        receipts = [message["receipt"] for message in taken]
        assert [row["state"] for row in await settle(other, "ack", "shared", "workers", receipts)] == ["done", "done"]
        progress = (await other.get("/v1/topics/shared/offsets?group=workers")).json
        assert (progress["lag"], sum(queue["committed"] for queue in progress["queues"])) == (0, 2)
        assert sum(queue["end"] for queue in (await other.get("/v1/topics/shared")).json["queues"]) == 2
        assert "shared" in (await other.get("/v1/topics")).json["topics"]


async def test_a_message_that_is_given_back_comes_again_and_its_old_receipt_is_void(cluster: LocalCluster) -> None:
    async with proxy(cluster.namesrv) as one, proxy(cluster.namesrv) as other:
        await send(one, "returned", "a")
        (first,) = await take(one, "returned", "workers", invisible_seconds=600)
        (row,) = await settle(other, "nack", "returned", "workers", [first["receipt"]], delay_seconds=1)
        assert row["state"] == "done"
        (second,) = await take(one, "returned", "workers")
        assert (second["text"], second["delivery_attempt"], second["message_id"]) == ("a", 2, first["message_id"])
        assert (await settle(one, "ack", "returned", "workers", [first["receipt"]]))[0]["state"] == "gone"
        assert (await settle(other, "ack", "returned", "workers", [second["receipt"]]))[0]["state"] == "done"


async def test_an_extended_message_stays_hidden_and_is_acknowledged_by_its_next_receipt(cluster: LocalCluster) -> None:
    async with proxy(cluster.namesrv) as one, proxy(cluster.namesrv) as other:
        await send(one, "extended", "a")
        (message,) = await take(one, "extended", "workers", invisible_seconds=1)
        (row,) = await settle(other, "extend", "extended", "workers", [message["receipt"]], invisible_seconds=600)
        longer = datetime.fromisoformat(row["visible_again_at"]) - datetime.fromisoformat(message["visible_again_at"])
        assert longer.total_seconds() > 500
        assert await take(one, "extended", "workers", wait_seconds=1.2) == [], "its first invisible time is over"
        assert (await settle(one, "ack", "extended", "workers", [message["receipt"]]))[0]["state"] == "gone"
        assert (await settle(one, "ack", "extended", "workers", [row["next_receipt"]]))[0]["state"] == "done"


async def test_a_forged_receipt_ends_nothing(cluster: LocalCluster) -> None:
    points = [
        (CheckPoint(0, 1, 1, False, Retry.NONE, "broker-a", 999, 5), 400),
        (CheckPoint(0, 1, 1, False, Retry.NONE, "broker-a", 0, 2**63 - 1), 200),
        (CheckPoint(2**62, 2**62, 2**62, True, Retry.V1, "broker-a", 2**31 - 1, 0), 404),
        (CheckPoint(0, 1, 1, False, Retry.NONE, "nowhere", 0, 0), 503),
    ]
    async with proxy(cluster.namesrv) as caller:
        await send(caller, "forged", "a")
        (message,) = await take(caller, "forged", "workers")
        for point, status in points:
            body = {"group": "workers", "receipts": [Receipt("workers", "forged", "x", point).text]}
            answer = await caller.post("/v1/topics/forged/ack", body)
            assert (answer.status, answer.json["results"][0]["state"]) == (
                status,
                "gone" if status == 200 else "failed",
            )
        assert (await settle(caller, "ack", "forged", "workers", [message["receipt"]]))[0]["state"] == "done"


async def test_a_request_repeated_at_another_proxy_stores_nothing_again(cluster: LocalCluster) -> None:
    headers = {"Idempotency-Key": "order-17"}
    async with proxy(cluster.namesrv) as one, proxy(cluster.namesrv) as other:
        for texts in (["a"], ["a", "b"]):
            first = await send(one, "once", *texts, headers=headers)
            again = await send(other, "once", *texts, headers=headers)
            assert [row["repeated"] for row in first + again] == [False] * len(texts) + [True] * len(texts)
            assert [(row["queue"], row["offset"]) for row in first] == [(row["queue"], row["offset"]) for row in again]
        assert sum(queue["end"] for queue in (await one.get("/v1/topics/once")).json["queues"]) == 3


async def test_messages_go_to_nobody_that_has_left(cluster: LocalCluster) -> None:
    async with proxy(cluster.namesrv) as one, proxy(cluster.namesrv) as other:
        await send(one, "left", "a")
        await take(one, "left", "workers")
        body = json.dumps({"group": "workers", "wait_seconds": 30, "invisible_seconds": 600}).encode()
        for _ in range(3):  # each leaves while its pop waits at the broker
            call = one.session.post(one.url + "/v1/topics/left/receive", data=body, headers=JSON)
            leaving = asyncio.create_task(call.__aenter__())
            await asyncio.wait((leaving,), timeout=0.1)
            leaving.cancel()
            await asyncio.wait((leaving,))
        await send(other, "left", "b")
        (message,) = await take(one, "left", "workers")
        assert (message["text"], message["delivery_attempt"]) == ("b", 1)


async def test_order_time_filters_and_traces_are_the_clusters(cluster: LocalCluster) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with proxy(cluster.namesrv) as one, proxy(cluster.namesrv) as other:
        messages = [{"text": str(number), "ordering_key": "k", "properties": {"n": str(number)}} for number in range(3)]
        answer = await one.post("/v1/topics/kinds/messages", messages, headers={"traceparent": parent})
        places = [(row["queue"], row["offset"]) for row in answer.json["messages"]]
        assert places == [(places[0][0], places[0][1] + number) for number in range(3)]
        answer = await other.post("/v1/topics/kinds/messages", {"text": "3", "ordering_key": "k", "tag": "last"})
        assert answer.json["messages"][0]["queue"] == places[0][0], "a key's queue is the same at every proxy"
        (wanted,) = await take(one, "kinds", "by-sql", sql="n = '1'")
        assert (wanted["text"], wanted["properties"]) == ("1", {"n": "1", "traceparent": parent})
        assert [message["text"] for message in await take(one, "kinds", "by-tag", filter="last || other")] == ["3"]
        later = await one.post("/v1/topics/kinds/messages", {"text": "never", "delay_seconds": 3_600})
        handle = {"recall_handle": later.json["messages"][0]["recall_handle"]}
        recalled = await other.post("/v1/topics/kinds/recall", handle)
        assert recalled.json == {"message_id": later.json["messages"][0]["message_id"]}
        assert (await other.post("/v1/topics/kinds/recall", {"recall_handle": "junk"})).status == 400


async def test_a_tail_goes_on_at_another_proxy_without_a_gap(cluster: LocalCluster) -> None:
    async def texts(caller: Caller, query: str, wanted: set[str], last_id: str = "") -> tuple[set[str], str]:
        """Return the texts of a tail until it has shown the wanted ones, and the last id."""
        found: set[str] = set()
        headers = {"Last-Event-ID": last_id} if last_id else {}
        async with caller.session.get(caller.url + "/v1/topics/tailed/tail" + query, headers=headers) as response:
            async with asyncio.timeout(20):
                while not last_id or not found.issuperset(wanted):
                    line = (await response.content.readline()).decode().strip()
                    if line.startswith("id: "):
                        last_id = line.removeprefix("id: ")
                    elif line.startswith("data: "):
                        found.add(json.loads(line.removeprefix("data: "))["text"])
        return found, last_id

    async with proxy(cluster.namesrv) as one, proxy(cluster.namesrv) as other, Admin(cluster.namesrv) as admin:
        await admin.create_topic("tailed", queues=2)  # so that later messages are in the queue of the first one, too
        await send(one, "tailed", "before")
        _, begin = await texts(one, "?start=last", set())
        for number in range(5):  # each goes to another queue
            await send(one, "tailed", f"{number}")
        seen, middle = await texts(one, "", {"0", "1", "2", "3"}, begin)
        assert "before" not in seen
        await send(one, "tailed", "5")
        rest, _ = await texts(other, "", {"0", "1", "2", "3", "4", "5"} - seen, middle)
        assert "before" not in rest
        for query in ("?start=first", "?since=0001-01-01T00:00:00Z"):
            await texts(other, query, {"before", "0", "1", "2", "3", "4", "5"})
        await texts(other, "?since=9999-12-31T23:59:59Z", set())
        assert {row.committed for row in await admin.offsets("http_tail", "tailed")} == {None}


async def test_sends_beyond_a_quota_are_told_to_wait(cluster: LocalCluster) -> None:
    async with proxy(cluster.namesrv) as caller, Admin(cluster.namesrv) as admin:
        await admin.create_topic("limited", queues=1)
        await admin.put_quota(Quota("topic", "limited", messages_per_second=1))
        bodies = [{"text": "x"}] * 4
        answer = await caller.post("/v1/topics/limited/messages", bodies)
        assert answer.status == 200, "a batch takes the quota of the next seconds"
        answer = await caller.post("/v1/topics/limited/messages", {"text": "x"})
        assert (answer.status, answer.headers["Retry-After"], answer.json["outcome"]) == (429, "1", "not_stored")
        assert "limited" in answer.json["detail"]


async def test_other_clients_read_what_http_has_sent_and_http_takes_what_they_have_sent(cluster: LocalCluster) -> None:
    async with proxy(cluster.namesrv) as caller, Producer(cluster.namesrv) as producer:
        await send(caller, "mixed", "by http", "x" * 10_000)
        await producer.send("mixed", b"y" * 10_000, key=["k1", "k2"], tags="t")
        async with PullConsumer(cluster.namesrv, "checker") as consumer:
            await consumer.assign(await consumer.queues("mixed"))
            found = [message.body async for message in _polled(consumer, 3)]
        assert sorted(map(len, found)) == [7, 10_000, 10_000]
        taken = await take(caller, "mixed", "workers", filter="t")
        assert [(message["text"][:1], message["keys"], message["tag"]) for message in taken] == [
            ("y", ["k1", "k2"], "t")
        ]


async def _polled(consumer: PullConsumer, count: int):
    async with asyncio.timeout(20):
        while count:
            for message in await consumer.poll():
                count -= 1
                yield message


async def test_a_cluster_that_is_not_there_is_named_and_nothing_is_stored() -> None:
    async with proxy("127.0.0.1:1", timeout_s=0.1) as caller:
        answer = await caller.post("/v1/topics/T/messages?timeout_seconds=0.1", {"text": "x"})
        assert (answer.status, answer.json["outcome"]) == (503, "not_stored")
        assert "127.0.0.1:1" in answer.json["detail"]
        for path in ("/v1/topics", "/v1/topics/T", "/v1/topics/T/offsets?group=G", "/v1/topics/T/tail"):
            assert (await caller.get(path)).status == 503
        assert (await caller.post("/v1/topics/T/receive", {"group": "G"})).status == 503
