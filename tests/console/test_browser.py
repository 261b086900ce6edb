"""The console in a real browser: headless Chromium, with axe-core as the judge of accessibility."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from conftest import HTML_BODY
from served_console import Visitor

from dledger_client import SubscriptionGroupConfig, SyncAdmin

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

sync_api = pytest.importorskip("playwright.sync_api")
NARROW = {"width": 320, "height": 640}
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        # A container's root has no sandbox of its own.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] * (os.geteuid() == 0))
        yield started
        started.close()


class Tab:
    """A tab, and everything in it that must not happen: errors of scripts, refused parts, requests to other hosts."""

    def __init__(self, page: sync_api.Page, address: str) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(address) else self.faults.append(request.url),
        )


@pytest.fixture
def tab(browser: sync_api.Browser, address: str) -> Iterator[Tab]:
    context = browser.new_context(base_url=address, viewport=NARROW, color_scheme="dark")
    context.set_default_timeout(20_000)
    opened = Tab(context.new_page(), address)
    yield opened
    context.close()
    assert opened.faults == []


@pytest.fixture
def admin(cluster) -> Iterator[SyncAdmin]:
    with SyncAdmin(cluster.namesrv) as started:
        yield started


def serious_findings(page: sync_api.Page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {[node['html'] for node in one['nodes']][:3]}" for one in violations if one["impact"] in SERIOUS
    ]


def paths(admin: SyncAdmin) -> list[str]:
    """Return a path of every page."""
    message = admin.messages_by_key("orders", "order-1")[0].offset_message_id
    return [
        "/",
        "/consumer-groups/billing",
        f"/messages/{message}",
        "/dead-letters/broken",
        "/broker-groups",
        "/broker-groups/broker-a",
        "/topics",
        "/topics/orders",
        "/consumer-groups",
        "/messages?topic=orders",
        "/dead-letters",
        "/tail?topic=orders",
        "/delayed",
        "/transactions",
        "/clients",
        "/accounts",
        "/may",
        "/quotas",
        "/configuration",
        "/logs",
        "/audit",
        "/login",
        "/nowhere",
    ]


def test_every_page_fits_a_narrow_screen(tab: Tab, admin: SyncAdmin) -> None:
    for path in paths(admin):
        tab.page.goto(path)
        width = tab.page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW["width"], f"{path} is {width} px wide"
    tab.faults.clear()  # the browser calls the status 404 of the last page an error


def test_the_overview_has_no_serious_finding(tab: Tab) -> None:
    tab.page.goto("/")
    assert serious_findings(tab.page) == []


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_finding(tab: Tab, admin: SyncAdmin, scheme: str) -> None:
    for path in paths(admin):
        tab.page.emulate_media(color_scheme=scheme)
        tab.page.goto(path)
        assert serious_findings(tab.page) == [], path
    tab.faults.clear()


def test_a_group_is_reset_by_keyboard_alone(tab: Tab, admin: SyncAdmin) -> None:
    admin.create_group(SubscriptionGroupConfig(group_name="typed"))
    admin.clone_offsets("billing", "typed")
    page = tab.page
    page.goto("/consumer-groups/typed")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "to":
            break
    page.keyboard.press("b")  # beginning
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Preview the reset"
    page.keyboard.press("Enter")
    page.get_by_text("This would happen.").wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Do it":
            break
    page.keyboard.press("Enter")
    page.get_by_text("Consumer group typed goes on at the beginning").wait_for()
    assert {one.committed for one in admin.progress("typed", "orders")} == {0}


def test_an_open_page_follows_the_cluster_and_pauses(tab: Tab, address: str, admin: SyncAdmin) -> None:
    admin.create_topic("followed", queues=1)
    tab.page.goto("/topics/followed")
    tab.page.get_by_text("Follows the cluster.").wait_for()
    kept = tab.page.locator("dl.figures dd").first
    assert kept.text_content() == "0"
    send(address, "followed")
    sync_api.expect(kept).to_have_text("1")
    tab.page.get_by_role("button", name="Pause").click()
    tab.page.get_by_text("Paused.").wait_for()
    send(address, "followed")
    with tab.page.expect_response("**/live/topics/followed") as followed:
        tab.page.get_by_role("button", name="Continue").click()
    assert followed.value.ok
    sync_api.expect(kept).to_have_text("2")


def send(address: str, topic: str) -> None:
    visitor = Visitor(address)
    visitor.go(f"/messages?topic={topic}")
    visitor.press("Preview the message", body="x", confirm="yes")
    visitor.http.close()


def test_a_message_is_found_by_its_key_and_its_html_stays_text(tab: Tab) -> None:
    page = tab.page
    page.goto("/messages")
    page.get_by_label("Topic", exact=True).fill("strange")
    page.locator("select[name=by]").select_option("key")
    page.get_by_label("Key, id, time or offset").fill("html")
    page.get_by_role("button", name="Find").click()
    page.locator("tbody th a").click()
    page.get_by_role("heading", name="What became of it").wait_for()
    assert page.locator("pre.content").text_content() == HTML_BODY.decode()
    assert page.title().startswith("Message ")
    page.get_by_role("link", name="Hex").click()
    assert "3c 69 6d 67" in (page.locator("pre.content").text_content() or "")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == HTML_BODY


def test_a_dead_letter_is_chosen_and_sent_again(tab: Tab, admin: SyncAdmin) -> None:
    page = tab.page
    page.goto("/dead-letters")
    page.get_by_role("link", name="browsed").click()
    page.get_by_text("browsed failed once").first.wait_for()
    page.get_by_role("checkbox", name="Choose").first.check()
    page.get_by_label("also those that were sent again before").check()
    page.get_by_role("button", name="Send the chosen ones again").click()
    page.get_by_text("is sent to topic spoilt").wait_for()
    before = len(admin.messages_by_key("spoilt", "letter-2"))
    page.get_by_role("button", name="Do it").click()
    page.get_by_text("1 dead letter sent again").wait_for()
    assert len(admin.messages_by_key("spoilt", "letter-2")) == before + 1


def test_times_are_in_the_readers_zone(browser: sync_api.Browser, address: str, admin: SyncAdmin) -> None:
    message = admin.messages_by_key("orders", "order-1")[0]
    context = browser.new_context(base_url=address, timezone_id="Asia/Tokyo", locale="sv-SE")
    page = context.new_page()
    page.goto(f"/messages/{message.offset_message_id}")
    hour = page.evaluate(f"new Date({message.stored_timestamp_ms}).getHours()")
    shown = page.locator("time[title]").first
    assert f" {hour:02}:" in (shown.text_content() or "")
    assert (shown.get_attribute("title") or "").endswith(" UTC")
    context.close()
