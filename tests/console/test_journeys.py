"""Journeys of somebody who has never read the documentation: from the overview by links and buttons to an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served_console import Visitor, served
from test_browser import CHROMIUM, admin, browser, sync_api, tab  # noqa: F401 - fixtures, and what they need

from dledger_admin.operations.access import Access
from dledger_client import SubscriptionGroupConfig, SyncAdmin
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
PATIENCE_MS = 60_000


def open_section(page: sync_api.Page, name: str) -> None:
    """Begin at the overview, and open a page by its link in the menu."""
    page.goto("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()


def test_somebody_finds_why_a_consumer_is_late(tab, admin: SyncAdmin) -> None:  # noqa: F811
    page = tab.page
    page.goto("/")
    late = page.get_by_role("listitem").filter(has_text="billing")
    late.get_by_text("no member reads: start a consumer of the group").wait_for()
    late.get_by_role("link", name="billing").click()
    page.get_by_text("No member reads, and").wait_for()
    page.get_by_text("Lag in time").wait_for()
    link = page.locator("#live tbody td.n a").first  # the messages that wait
    link.click()
    page.get_by_role("heading", name="Found").wait_for()
    assert page.locator("tbody th a").count() >= 1


def test_somebody_finds_a_message_by_its_key_and_what_became_of_it(tab) -> None:  # noqa: F811
    page = tab.page
    open_section(page, "Messages")
    page.get_by_label("Topic", exact=True).fill("failing")
    page.locator("select[name=by]").select_option("key")
    page.get_by_label("Key, id, time or offset").fill("letter-1")
    page.get_by_role("button", name="Find").click()
    page.locator("tbody th a").first.click()
    story = page.locator("ol.story")
    story.get_by_text("dead letter after 1 failure").wait_for()
    story.get_by_role("link", name="this copy").first.click()
    page.get_by_text("%DLQ%broken").first.wait_for()


def test_somebody_follows_a_topic_and_sees_a_message_come(tab, address: str, admin: SyncAdmin) -> None:  # noqa: F811
    admin.create_topic("followed-by-tail", queues=1)
    page = tab.page
    open_section(page, "Messages")
    page.get_by_role("link", name="Follow a topic").click()
    page.get_by_label("Topic", exact=True).fill("followed-by-tail")
    page.get_by_label("Tag, such as").fill("wanted")
    page.get_by_role("button", name="Follow").click()
    page.get_by_text("Follows the cluster.").wait_for()
    visitor = Visitor(address)
    for tag, body in (("other", "not this"), ("wanted", "<b>this</b>")):
        visitor.go("/messages?topic=followed-by-tail")
        visitor.press("Preview the message", body=body, tag=tag, confirm="yes")
    visitor.http.close()
    page.get_by_text("<b>this</b>").wait_for()
    assert page.get_by_text("not this").count() == 0


def test_somebody_sets_a_quota_with_a_preview(tab, admin: SyncAdmin) -> None:  # noqa: F811
    page = tab.page
    open_section(page, "Quotas")
    page.locator("select[name=kind]").select_option("topic")
    page.get_by_label("Name of the account or topic").fill("browsed-quota")
    page.get_by_label("Messages per second").fill("7")
    page.get_by_role("button", name="Preview the quota").click()
    page.get_by_text("held beyond 7 messages per second").wait_for()
    page.get_by_role("button", name="Do it").click()
    page.get_by_text("The quota of topic browsed-quota is set.").wait_for()
    page.get_by_role("button", name="Delete the quota of topic browsed-quota on broker-a").click()
    page.get_by_role("button", name="Do it").click()
    page.get_by_text("The quota of topic browsed-quota is deleted.").wait_for()


@pytest.fixture
def replicated() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.mark.long
def test_somebody_drains_the_leader_and_reads_who_leads_and_why_it_changed(
    replicated: LocalCluster,
    browser: sync_api.Browser,  # noqa: F811
) -> None:
    first = replicated.leader()
    with served(Access(replicated.namesrv)) as address, SyncAdmin(replicated.namesrv) as admin:  # noqa: F811
        admin.create_group(SubscriptionGroupConfig(group_name="readers"))
        page = browser.new_page(base_url=address)
        page.set_default_timeout(PATIENCE_MS)
        open_section(page, "Broker groups")
        page.get_by_role("link", name="broker-a").click()
        page.get_by_text(f"{first} leads in term").wait_for()
        page.get_by_label("Node to drain").select_option(first)
        page.get_by_role("button", name="Preview the drain").click()
        page.get_by_text(f"{first} may be stopped: 2 of 3 voters go on").wait_for()
        page.get_by_role("button", name="Do it").click()
        page.get_by_text(f"{first} is drained").wait_for()
        second = replicated.leader()
        assert second != first
        page.get_by_text(f"{second} leads in term").wait_for()
        story = page.locator("ol.story li").first
        assert f"{first} handed over to it" in (story.text_content() or "")
        assert f"{first} handed over to {second}: it was asked to" in (story.text_content() or "")
        replicated.kill(first)
        page.get_by_label("Node that is to lead").select_option(
            next(node for node in replicated.node_ids if node not in (first, second))
        )
        page.get_by_role("button", name="Preview the move").click()
        page.get_by_text("no acknowledged message is lost").wait_for()
        page.close()
