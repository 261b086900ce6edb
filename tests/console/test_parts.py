"""Parts of the console without a cluster: sessions, patience, names, bodies of messages, lists, numbers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from dledger_admin.operations.access import Access
from dledger_client import Credentials, DeadlineError, MessageQueue, ReceivedMessage
from dledger_client.errors import refusal
from dledger_console import bodies, rendering, sessions
from dledger_console import cluster as cluster_module
from dledger_console.bodies import MAX_CHARS, MAX_HEX_BYTES, body_of
from dledger_console.cluster import Cluster
from dledger_console.guarding import Names, is_loopback, is_same_origin
from dledger_console.pages import ROWS_PER_PAGE, Search, select
from dledger_console.server import _own_path
from dledger_console.sessions import Patience, Sessions
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import error_from_response
from dledger_remoting.signatures import NOT_SIGNED

PERSON = Credentials("person", "secret")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_session_ends_after_idle_time_and_after_its_longest_time(clock: Clock) -> None:
    book = Sessions(clock)
    idle, busy = book.open(PERSON), book.open(PERSON)
    assert idle != busy
    clock.now += sessions.IDLE_SECONDS - 1
    assert book.find(busy) == PERSON
    clock.now += 2
    assert book.find(idle) is None
    for _ in range(int(sessions.MAX_SECONDS / sessions.IDLE_SECONDS * 2)):
        clock.now += sessions.IDLE_SECONDS / 2
        book.find(busy)
    assert book.find(busy) is None


def test_an_open_page_does_not_keep_a_session_alive(clock: Clock) -> None:
    book = Sessions(clock)
    session = book.open(PERSON)
    for _ in range(4):
        clock.now += sessions.IDLE_SECONDS / 3
        book.find(session, is_use=False)
    assert book.find(session) is None


def test_the_number_of_sessions_is_bounded_and_the_least_used_goes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    book = Sessions(clock)
    first, second = book.open(PERSON), book.open(PERSON)
    book.find(first)
    third = book.open(PERSON)
    assert [book.find(one) is not None for one in (first, second, third)] == [True, False, True]


def test_a_token_is_that_of_one_visitor_of_one_console(clock: Clock) -> None:
    book = Sessions(clock)
    token = book.token("visitor")
    assert book.is_token("visitor", token)
    assert not book.is_token("other", token)
    assert not book.is_token("visitor", token[:-1])
    assert not book.is_token("visitor", "ü")
    assert not book.is_token("", book.token(""))
    assert not Sessions(clock).is_token("visitor", token)


def test_wrong_logins_wait_longer_each_time_and_a_right_one_costs_nothing(clock: Clock) -> None:
    patience = Patience(2, clock)
    waits = []
    for _ in range(12):
        waits.append(patience.seconds_left("person"))
        clock.now += patience.seconds_left("person")
        patience.note("person")
    assert waits[:6] == [0, 0, 0, 1, 2, 4]
    assert waits[-1] == sessions.MAX_PAUSE_SECONDS
    assert patience.seconds_left("other") == 0
    patience.note("other")
    patience.forgive("other")
    assert "other" not in patience._guesses


def test_the_number_of_counted_names_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_GUESSED", 3)
    patience = Patience(0, clock)
    for number in range(5):
        patience.note(str(number))
    assert [patience.seconds_left(str(number)) > 0 for number in range(5)] == [False, False, True, True, True]


class Silent:
    """Administrator of a cluster that answers what the test says, or not at all."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    async def groups(self) -> dict[str, object]:
        self.asked += 1
        if self.error is None:
            await asyncio.get_running_loop().create_future()
        raise self.error  # type: ignore[misc]  # the future never ends


async def test_a_cluster_that_does_not_answer_is_asked_briefly_and_its_last_answer_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "PROBE_SECONDS", 0.001)
    monkeypatch.setattr(cluster_module, "_STRANGERS_SECONDS", 0.0)
    cluster, silent = Cluster(Access("127.0.0.1:1")), Silent()

    async def admin_of(*_: object) -> Silent:
        return silent

    monkeypatch.setattr(Cluster, "admin_of", admin_of)
    assert await cluster.answers_strangers()
    silent.error = refusal(error_from_response(ResponseCode.NO_PERMISSION, NOT_SIGNED, {}))
    assert not await cluster.answers_strangers()
    silent.error = None
    assert not await cluster.answers_strangers()
    silent.error = DeadlineError("no answer")
    assert not await cluster.answers_strangers()
    monkeypatch.setattr(cluster_module, "_STRANGERS_SECONDS", 60.0)
    asked = silent.asked
    assert not await cluster.answers_strangers()
    assert not await cluster.answers_strangers()
    assert silent.asked == asked + 1


async def test_viewers_share_an_answer_and_also_its_error() -> None:
    cluster, asked = Cluster(Access("127.0.0.1:1")), []
    gate = asyncio.Event()

    async def ask() -> int:
        asked.append(1)
        await gate.wait()
        if len(asked) > 1:
            raise DeadlineError("no answer")
        return len(asked)

    both = [asyncio.create_task(cluster.share("key", 60.0, ask)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()  # a viewer who leaves takes nothing from the others
    gate.set()
    assert await both[1] == 1
    assert await cluster.share("key", 60.0, ask) == 1
    with pytest.raises(DeadlineError):
        await cluster.share("key", 0.0, ask)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("listens_on", "host", "known"),
    [
        ("127.0.0.1", "localhost:9880", True),
        ("127.0.0.1", "[::1]:9880", True),
        ("0.0.0.0", "0.0.0.0:9880", False),
        ("10.0.0.5", "10.0.0.5:9880", True),
        ("127.0.0.1", "mq.example", True),
        ("127.0.0.1", "MQ.example:443", True),
        ("127.0.0.1", "mq.example.evil", False),
        ("127.0.0.1", "", False),
    ],
)
def test_the_console_answers_under_known_names_only(listens_on: str, host: str, known: bool) -> None:
    names = Names(listens_on, ["mq.example"])
    assert names.is_known(make_mocked_request("GET", "/", headers={"Host": host})) == known


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({}, True),
        ({"Origin": "http://localhost:9880"}, True),
        ({"Origin": "http://localhost:9881"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://localhost.evil:9880"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site"}, False),
    ],
)
def test_a_change_from_another_origin_is_seen(headers: dict[str, str], ours: bool) -> None:
    request = make_mocked_request("POST", "/", headers={"Host": "localhost:9880", **headers})
    assert is_same_origin(request) == ours


def test_addresses_that_other_machines_reach_are_known() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.5", "mq")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("path", ["//evil", "https://evil", "/\\evil", "\\evil", "", "evil", "/a\nb", "/a\\b"])
def test_a_path_of_another_host_becomes_the_overview(path: str) -> None:
    assert _own_path(path) == "/"
    assert _own_path("/topics?q=a%25") == "/topics?q=a%25"


def message(body: bytes, fault: str | None = None) -> ReceivedMessage:
    queue = MessageQueue("t", "broker-a", 0)
    return ReceivedMessage("t", body, None, (), {}, queue, 0, "U", "O", 0, 0, 0, 0, fault=fault)


def test_a_body_is_shown_in_the_first_form_that_fits() -> None:
    assert body_of(message(b' {"a": [1]}'), "auto").form == "json"
    assert body_of(message(b"17"), "auto").form == "text"
    assert body_of(message(b'{"a": '), "auto").form == "text"
    assert body_of(message(b"\xff"), "text").form == "hex"
    assert body_of(message(b'{"a":1}'), "text").text == '{"a":1}'
    assert body_of(message(b""), "auto").text == ""
    unreadable = body_of(message(b"{}", "no zlib stream"), "json")
    assert (unreadable.form, unreadable.forms, unreadable.fault) == ("hex", ["hex"], "no zlib stream")


def test_json_that_nests_too_deep_is_text() -> None:
    assert body_of(message(b"[" * 100_000 + b"]" * 100_000), "auto").form == "text"


def test_a_long_body_is_cut_and_says_so() -> None:
    for body, form, most in (
        (b"x" * (MAX_CHARS + 1), "text", MAX_CHARS),
        (b"\xff" * (MAX_HEX_BYTES + 1), "hex", MAX_HEX_BYTES * 5),
        (json.dumps(["x" * MAX_CHARS]).encode(), "json", MAX_CHARS),
    ):
        shown = body_of(message(body), "auto")
        assert (shown.form, shown.is_cut, shown.size) == (form, True, len(body))
        assert len(shown.text) <= most
    assert not body_of(message(b"x" * MAX_CHARS), "auto").is_cut
    assert bodies.MAX_HEX_BYTES % 16 == 0


def test_a_list_has_pages_and_a_search_ignores_case() -> None:
    names = [f"Topic-{number:03}" for number in range(ROWS_PER_PAGE * 2 + 1)]
    shown, rows = select(names, Search(page=3))
    assert (shown, rows.page, rows.pages) == ([names[-1]], 3, 3)
    assert select(names, Search(page=-5))[1].page == 1
    assert select(names, Search(page=10**9))[0] == [names[-1]]
    found, rows = select(names, Search(q=" tOPIC-00 "))
    assert (len(found), rows.matching, rows.total) == (10, 10, len(names))
    assert select([], Search())[1] == msgspec.structs.replace(rows, page=1, pages=1, matching=0, total=0)


def test_numbers_sizes_and_times_are_written_for_people() -> None:
    assert (rendering.number(1234567), rendering.number(None), rendering.number(0.25, 1)) == ("1,234,567", "–", "0.2")
    assert (rendering.size(1023), rendering.size(1536), rendering.size(5 << 40)) == (
        "1,023 bytes",
        "1.5 KiB",
        "5.0 TiB",
    )
    assert "1970-01-01 00:00:01.500 UTC" in rendering.moment(1500)
    assert rendering.moment(10**18) == "1000000000000000000 ms since 1970"
    assert (rendering.path("%RETRY%a/b"), rendering.query({"a": "%", "b": ""})) == ("%25RETRY%25a%2Fb", "?a=%25")


def test_values_in_a_page_are_escaped() -> None:
    pages = rendering.Pages({"version": "1", "name_servers": "<script>"})
    problem = SimpleNamespace(title="<b>", detail='"><img src=x>')
    frame = {"account": "<i>", "token": '"', "told": "<u>", "section": "", "live": "", "path_qs": "/"}
    text = pages.page("error.html", {**frame, "problem": problem})
    assert not any(tag in text for tag in ("<b>", "<img", "<i>", "<u>", "<script>", '""'))
