"""Every page and change of the console, on a real cluster, as somebody without scripts uses it."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import httpx
import pytest
from conftest import HTML_BODY, ORDERS
from served_console import SECONDS, Page, Visitor

from dledger_client import SubscriptionGroupConfig, SyncAdmin
from dledger_console.guarding import HEADERS
from dledger_console.views import CHANGES, LOOKS


@pytest.fixture
def admin(cluster):
    with SyncAdmin(cluster.namesrv) as started:
        yield started


def offset_id(admin: SyncAdmin, topic: str, key: str) -> str:
    return admin.messages_by_key(topic, key)[0].offset_message_id


PRESSED_ELSEWHERE = {"/change/recall", "/delete/quota"}
"""Changes of what this cluster lacks: `test_operating_pages` makes it, and presses the buttons."""
NOT_HERE = {"/accounts/{account}", "/consumer-groups/{group}/members/{client_id}"}
"""Pages of what this cluster lacks: accounts, and a consumer that runs. They have tests of their own."""


def paths(admin: SyncAdmin) -> dict[str, str]:
    """Return a path of every page of what this cluster has, by the page's pattern."""
    names = {
        "{broker_group}": "broker-a",
        "{topic}": "orders",
        "{group}": "broken",
        "{offset_id}": offset_id(admin, "orders", "order-3"),
    }
    found = {}
    for look in LOOKS:
        if look.path in NOT_HERE:
            continue
        path = look.path
        for name, value in names.items():
            path = path.replace(name, value)
        found[look.path] = path
    return found


def test_every_page_is_whole_without_scripts_and_says_the_same_as_json(visitor: Visitor, admin: SyncAdmin) -> None:
    for path in paths(admin).values():
        page = visitor.go(path)
        assert (page.response.status_code, page.refused) == (200, []), path
        assert HEADERS.items() <= dict(page.response.headers.items()).items() or all(
            page.response.headers[name] == value for name, value in HEADERS.items()
        )
        assert visitor.read("" if path == "/" else path) is not None, path
    assert "Healthy: 1 node in 1 broker group work." in visitor.go("/").text
    assert visitor.read("")["sentence"] in visitor.page.text


def test_a_broker_groups_page_says_who_leads_and_how_far_every_replica_is(visitor: Visitor) -> None:
    page = visitor.go("/broker-groups/broker-a")
    assert "broker-a-n0 leads in term 1." in page.text
    assert "broker-a-n0 in term 1: elected by a majority: it has heard from no leader" in page.text
    (leader,) = visitor.read("/broker-groups/broker-a")["leaders"]
    assert (leader["leader"], leader["term"]) == ("broker-a-n0", 1)
    (replica,) = visitor.read("/broker-groups/broker-a")["group"]["replicas"]
    assert replica["role"] == "leader"
    assert replica["match_index"] == replica["last_index"] >= replica["commit"] > 0
    assert replica["log_end"] >= replica["durable_position"] > 0


def test_the_lists_of_topics_and_groups_are_searched_and_paged(visitor: Visitor) -> None:
    page = visitor.go("/topics?q=ORD")
    assert "1 of " in page.text
    assert "/topics/orders" in page.links
    assert "/topics/strange" not in page.links
    assert "page 1 of 1" in visitor.go("/topics?page=99").text
    assert "No topic has zzz in its name." in visitor.go("/topics?q=zzz").text
    assert [line["group"] for line in visitor.read("/consumer-groups?q=bill")["groups"]] == ["billing"]


def test_names_with_percent_signs_have_pages(visitor: Visitor) -> None:
    assert f"/topics/{quote('%DLQ%broken', safe='')}" in visitor.go("/topics?system=true&q=DLQ").links
    assert "Topic %DLQ%broken" in visitor.go("/topics/%25DLQ%25broken").text


def test_what_does_not_exist_is_a_404_with_a_way_back(visitor: Visitor) -> None:
    for path in ("/nowhere", "/topics/none", "/consumer-groups/none", "/broker-groups/none", "/static/none"):
        page = visitor.go(path)
        assert (page.response.status_code, "/" in page.links) == (404, True), path
    answer = visitor.http.get("/api/consumer-groups/none")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {"status": 404, "title": "Not Found", "detail": "There is no consumer group none."}


def test_a_request_that_does_not_fit_is_told_which_part(visitor: Visitor) -> None:
    page = visitor.go("/topics?page=first")
    assert page.response.status_code == 400
    assert "$.page" in page.text
    assert "no queue such as 3 or broker-a/3" in visitor.go("/messages?topic=orders&queue=first").text
    assert visitor.go("/messages?topic=orders&by=time&value=noon").response.status_code == 400


def test_messages_are_found_by_key_ids_time_and_place(visitor: Visitor, admin: SyncAdmin) -> None:
    message = admin.messages_by_key("orders", "order-3")[0]
    place = f"&queue=broker-a/{message.queue_id}"
    for query in (
        "by=key&value=order-3",
        f"by=unique+key&value={message.message_id}",
        f"by=offset+id&value={message.offset_message_id}",
        f"by=offset&value={message.queue_offset}{place}&count=1",
        f"by=time&value=2020-01-01{place}",
        "by=newest&count=64",
    ):
        found = visitor.read(f"/messages?topic=orders&{query}")["messages"]
        assert message.offset_message_id in {one["offset_message_id"] for one in found}, query
    assert len(visitor.read("/messages?topic=orders&count=64")["messages"]) >= ORDERS
    assert visitor.read("/messages?topic=orders&by=time&value=2999-01-01")["messages"] == []
    assert visitor.go("/messages?topic=orders&by=key&value=none").response.status_code == 404
    assert visitor.go("/messages?topic=none").response.status_code == 404


def test_a_message_shows_its_body_in_its_forms_and_what_became_of_it(visitor: Visitor, admin: SyncAdmin) -> None:
    path = f"/messages/{offset_id(admin, 'orders', 'order-3')}"
    shown = visitor.read(path)
    assert shown["body"] == {
        "form": "json",
        "text": '{\n  "order": 3\n}',
        "size": 12,
        "is_cut": False,
        "forms": ["json", "text", "hex"],
        "fault": None,
    }
    assert {"stored", "sent"} <= {event["what"] for event in shown["story"]}
    assert "7b 22 6f 72 64 65 72" in visitor.go(f"{path}?body=hex").text
    letter = f"/messages/{offset_id(admin, 'failing', 'letter-1')}"
    assert "dead letter after 1 failure" in visitor.go(letter).text


def test_a_body_of_html_is_text_and_its_download_is_no_page(visitor: Visitor, admin: SyncAdmin) -> None:
    wanted = offset_id(admin, "strange", "html")
    page = visitor.go(f"/messages/{wanted}")
    assert page.refused == []
    assert HTML_BODY.decode() in page.text
    file = visitor.http.get(f"/bodies/{wanted}")
    assert file.content == HTML_BODY
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"].startswith("attachment")
    assert file.headers["x-content-type-options"] == "nosniff"


def test_a_large_body_is_cut_and_a_binary_one_is_hexadecimal(visitor: Visitor, admin: SyncAdmin) -> None:
    large = visitor.go(f"/messages/{offset_id(admin, 'strange', 'megabyte')}")
    assert len(large.response.content) < 200_000
    assert "This is the beginning only." in large.text
    body = visitor.read(f"/messages/{offset_id(admin, 'strange', 'binary')}")["body"]
    assert (body["form"], body["forms"]) == ("hex", ["hex"])
    assert body["text"].startswith("00000000  00 ff 10 62")


def test_a_topic_is_created_changed_and_deleted_after_a_preview(visitor: Visitor, admin: SyncAdmin) -> None:
    visitor.go("/topics")
    page = visitor.press("Preview the topic", topic="made", queues="3", permission="read-write")
    assert "topic made is made with 3 queues on broker-a, read-write" in page.text
    assert "made" not in admin.topics()
    assert "Topic made is created." in visitor.press("Do it").text
    assert admin.topic_config("made")["broker-a"].read_queue_nums == 3
    visitor.press("Preview the change", queues="1")
    assert "queues 1 to 2 of made on broker-a cannot be read" in visitor.page.text
    assert "Topic made is changed." in visitor.press("Do it").text
    assert "topic made with 1 queues and the 0 messages" in visitor.press("Show what goes").text
    assert "made" in admin.topics()
    assert "Topic made is deleted." in visitor.press("Do it").text
    assert "made" not in admin.topics()
    assert "Topic made is deleted." not in visitor.go("/topics").text


def test_a_copy_of_offsets_names_a_group_that_is_not_there_yet(visitor: Visitor) -> None:
    visitor.go("/consumer-groups/billing")
    page = visitor.press("Preview the copy", target="later")
    assert "consumer group later, which its first consumer makes, begins where billing is" in page.text


def test_a_group_is_reset_paused_resumed_cloned_and_deleted_after_a_preview(visitor: Visitor, admin: SyncAdmin) -> None:
    for name in ("ledger", "ledger-2"):
        admin.create_group(SubscriptionGroupConfig(group_name=name))
    admin.clone_offsets("billing", "ledger")
    visitor.go("/consumer-groups/ledger")
    before = admin.progress("ledger")
    page = visitor.press("Preview the reset", to="beginning")
    assert "messages come again" in page.text
    assert admin.progress("ledger") == before
    assert "goes on at the beginning in" in visitor.press("Do it").text
    assert {one.committed for one in admin.progress("ledger") if one.queue.topic == "orders"} == {0}
    visitor.press("Preview the pause")
    assert "Consumer group ledger is paused." in visitor.press("Do it").text
    assert not admin.groups()["ledger"].consume_enable
    visitor.press("Preview the resumption")
    assert "Consumer group ledger is resumed." in visitor.press("Do it").text
    assert admin.groups()["ledger"].consume_enable
    visitor.press("Preview the copy", target="ledger-2")
    assert "goes on where ledger is" in visitor.press("Do it").text
    assert {one.committed for one in admin.progress("ledger-2") if one.queue.topic == "orders"} == {0}
    visitor.press("Show what goes")
    assert "ledger" in admin.groups()
    assert "Consumer group ledger is deleted." in visitor.press("Do it").text
    assert "ledger" not in admin.groups()


def test_a_reset_goes_to_a_time_and_to_an_offset(visitor: Visitor, admin: SyncAdmin) -> None:
    admin.create_group(SubscriptionGroupConfig(group_name="mover"))
    admin.clone_offsets("billing", "mover")
    for fields, committed in (
        ({"to": "offset", "offset": "1"}, {1}),
        ({"to": "time", "time": "2020-01-01T00:00"}, {0}),
        ({"to": "end"}, {ORDERS // 2}),
    ):
        visitor.go("/consumer-groups/mover")
        visitor.press("Preview the reset", **fields, topic="orders")
        visitor.press("Do it")
        assert {one.committed for one in admin.progress("mover", "orders")} == committed, fields
    visitor.go("/consumer-groups/mover")
    assert visitor.press("Preview the reset", to="offset").response.status_code == 400


def test_a_message_is_sent_as_typed_and_sent_again(visitor: Visitor, admin: SyncAdmin) -> None:
    body = '\n first line\r\n<b>second</b> "quoted" %25 ü'
    visitor.go("/messages?topic=orders")
    page = visitor.press("Preview the message", body=body, key="typed other", tag="t")
    assert "is added to topic orders, read by billing" in page.text
    assert admin.messages_by_key("orders", "typed") == []
    assert "The message is stored in topic orders" in visitor.press("Do it").text
    (sent,) = admin.messages_by_key("orders", "typed")
    assert (sent.body.decode(), sent.keys, sent.tags) == (body.replace("\r\n", "\n"), ("typed", "other"), "t")
    visitor.go(f"/messages/{sent.offset_message_id}")
    visitor.press("Preview the copy")
    visitor.press("Do it")
    first, second = admin.messages_by_key("orders", "typed")
    assert (second.body, second.keys, second.tags) == (first.body, first.keys, first.tags)
    assert second.message_id != first.message_id


def test_a_typing_error_sends_nothing_and_makes_no_topic(visitor: Visitor, admin: SyncAdmin) -> None:
    visitor.go("/messages")
    assert visitor.press("Preview the message", topic="ordres", body="x").response.status_code == 404
    visitor.go("/messages")
    assert visitor.press("Preview the message", topic="ordres", confirm="yes", body="x").response.status_code == 404
    assert "ordres" not in admin.topics()


def test_dead_letters_are_sent_again_one_by_one_and_all_and_none_twice(visitor: Visitor, admin: SyncAdmin) -> None:
    assert visitor.read("/dead-letters?q=broken")["groups"] == [{"group": "broken", "messages": 3}]
    page = visitor.go("/dead-letters/broken")
    assert "broken failed once, at last by ValueError: <b>no price</b>" in page.text
    letters = visitor.read("/dead-letters/broken")["letters"]
    assert {letter["keys"][0] for letter in letters} == {"letter-0", "letter-1", "letter-2"}
    assert visitor.press("Send the chosen ones again").response.status_code == 409
    visitor.go("/dead-letters/broken")
    first = letters[0]
    page = visitor.press("Send the chosen ones again", ids=[first["offset_message_id"]])
    assert f"{first['offset_message_id']} is sent to topic failing" in page.text
    assert len(admin.messages_by_key("failing", first["keys"][0])) == 1
    assert "1 dead letter sent again, 0 were sent before." in visitor.press("Do it").text
    assert len(admin.messages_by_key("failing", first["keys"][0])) == 2
    assert "each of 3 dead letters of broken" in visitor.press("Send all of them again").text
    assert "2 dead letters sent again, 1 were sent before." in visitor.press("Do it").text
    assert [len(admin.messages_by_key("failing", f"letter-{number}")) for number in range(3)] == [2, 2, 2]
    original = visitor.read(f"/messages/{offset_id(admin, 'failing', 'letter-0')}")
    assert "dead letter sent again" in {event["what"] for event in original["story"]}


def test_a_change_needs_the_token_of_its_visitor_and_our_own_page(
    visitor: Visitor, address: str, admin: SyncAdmin
) -> None:
    fields = {"topic": "forged", "confirm": "yes"}
    token = visitor.token()
    foreign = Visitor(address)
    for one, data, headers in (
        (visitor.http, fields, {}),
        (visitor.http, fields | {"token": "0" * 64}, {}),
        (visitor.http, fields | {"token": foreign.token()}, {}),
        (visitor.http, fields | {"token": token}, {"Origin": "http://evil.example"}),
        (visitor.http, fields | {"token": token}, {"Origin": "null"}),
        (visitor.http, fields | {"token": token}, {"Sec-Fetch-Site": "cross-site"}),
        (httpx.Client(base_url=address), fields | {"token": token}, {}),
    ):
        assert one.post("/change/topic", data=data, headers=headers).status_code == 403
    answer = visitor.http.post("/api/change/topic", json={"topic": "forged"})
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    assert "forged" not in admin.topics()
    foreign.http.close()


def test_the_api_changes_what_pages_change_after_a_dry_run(visitor: Visitor, admin: SyncAdmin) -> None:
    token = {"X-CSRF-Token": visitor.token()}

    def change(path: str, **values: object):
        answer = visitor.http.post(f"/api{path}", json=values, headers=token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    wish = {"topic": "by-api", "queues": 2}
    assert change("/change/topic", **wish, dry_run=True)["effects"][0].startswith("topic by-api is made with 2 queues")
    assert "by-api" not in admin.topics()
    assert change("/change/topic", **wish) == {"topic": "by-api", "state": "created"}
    assert change("/topics/by-api/delete") == {"topic": "by-api", "state": "deleted"}
    wrong = visitor.http.post("/api/change/topic", json={"topic": "by-api", "queues": "two"}, headers=token)
    assert (wrong.status_code, "queues" in wrong.json()["detail"]) == (400, True)
    assert visitor.http.post("/api/change/topic", content=b"{", headers=token).status_code == 400


def test_requests_under_another_name_are_refused_and_a_proxys_name_gets_secure_cookies(address: str) -> None:
    port = address.rpartition(":")[2]
    for name, status in (
        (f"localhost:{port}", 200),
        (f"LOCALHOST:{port}", 200),
        (f"[::1]:{port}", 200),
        ("console.example", 200),
        ("evil.example", 421),
        (f"127.0.0.1.evil.example:{port}", 421),
        ("", 421),
    ):
        answer = httpx.get(f"{address}/topics", headers={"Host": name})
        assert answer.status_code == status, name
        assert ("orders" in answer.text) == (status == 200)
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        assert ("Secure" in cookie) == (name == "console.example")


def test_a_page_that_moves_sends_itself_again_when_the_cluster_has_changed(address: str, admin: SyncAdmin) -> None:
    admin.create_topic("moving", queues=1)

    def parts(stream: httpx.Response):
        lines, end = iter(stream.iter_lines()), time.monotonic() + SECONDS
        for line in lines:
            assert time.monotonic() < end
            if line == "event: part":
                yield json.loads(next(lines).removeprefix("data: "))

    with httpx.stream("GET", f"{address}/live/topics/moving", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        moving = parts(stream)
        assert "<dt>Kept messages</dt><dd>0</dd>" in next(moving)
        visitor = Visitor(address)
        visitor.go("/messages?topic=moving")
        visitor.press("Preview the message", body="news")
        visitor.press("Do it")
        assert any("<dt>Kept messages</dt><dd>1</dd>" in part for part in moving)
    with httpx.stream("GET", f"{address}/live/topics/none") as stream:
        assert next(stream.iter_lines()) == "event: trouble"


def test_every_change_is_reached_from_a_page(visitor: Visitor, admin: SyncAdmin) -> None:
    reached: set[str] = set()
    for path in paths(admin).values():
        reached |= {form.action for form in visitor.go(path).forms if form.method == "post"}
    patterns = {change.path: change.path.split("{")[0] for change in CHANGES}
    endings = {change.path: change.path.rpartition("/")[2] for change in CHANGES}
    for change in CHANGES:
        if change.section == "accounts" or change.path in PRESSED_ELSEWHERE:
            continue
        assert any(
            action.startswith(patterns[change.path]) and action.endswith(endings[change.path]) for action in reached
        ), change.path


def test_a_page_of_the_test_notices_what_the_policy_refuses() -> None:
    bad = "<p style='x' onclick=y></p><script>1</script><img src='https://else.example/a.png'>"
    assert len(Page(httpx.Response(200, text=bad)).refused) == 4
