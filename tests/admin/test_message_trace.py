"""`dledger message trace` shows the traces of a message, with any other content in the trace topic."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from command_fakes import FakeAdmin, as_json, dledger, fails_in_one_line, use_fakes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger_admin.cli import main
from dledger_remoting.traces import (
    DeliveryTrace,
    EndTrace,
    HandlingTrace,
    RecallTrace,
    SendTrace,
    encode_trace,
)

BEGUN_MS = 1_700_000_000_000
SENT = SendTrace(BEGUN_MS, "R", "PG", "orders", "ID", "a", "k", "127.0.0.1:10911", 5, 3, 0, "OFFSET", True)
STORY = [
    SENT,
    DeliveryTrace(BEGUN_MS + 10, "R", "CG", "r1", "ID", 0, "k"),
    HandlingTrace("r1", "ID", 7, False, "k", 4),
    DeliveryTrace(BEGUN_MS + 30, "R", "CG", "r2", "ID", 1, "k", "192.0.2.7"),
    HandlingTrace("r2", "ID", 2, True, "k", 0, BEGUN_MS + 32, "CG"),
]


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)
    monkeypatch.setattr(FakeAdmin, "trace_bodies", [])


def written(*traces):
    FakeAdmin.trace_bodies.append("".join(map(encode_trace, traces)).encode())


def test_a_message_is_followed_from_its_producer_through_all_deliveries():
    written(*reversed(STORY))
    written(*STORY[:2])  # a trace that was sent twice is shown once
    assert [line.split()[1:4] for line in dledger("message", "trace", "ID").splitlines()] == [
        ["what", "group", "took"],
        ["sent", "PG", "3"],
        ["delivered", "CG", "-"],
        ["failed", "CG", "7"],
        ["delivered", "CG", "-"],
        ["handled", "CG", "2"],
    ]
    shown = as_json("message", "trace", "ID", "--max", "3")
    assert [one["kind"] for one in shown] == ["Pub", "SubBefore", "SubAfter", "SubBefore", "SubAfter"]
    assert (shown[0]["broker"], shown[0]["message_type"], shown[3]["host"]) == ("127.0.0.1:10911", 0, "192.0.2.7")
    assert FakeAdmin.calls == [("trace", "ID", "RMQ_SYS_TRACE_TOPIC", 64), ("trace", "ID", "RMQ_SYS_TRACE_TOPIC", 3)]


def test_each_thing_that_can_happen_to_a_message_has_a_word():
    half = SendTrace(1, "R", "PG", "orders", "ID", "", "", "", 5, 3, 1, "OFFSET", True)
    later = SendTrace(2, "R", "PG", "orders", "ID", "", "", "", 5, 3, 3, "OFFSET", True)
    failed = SendTrace(3, "R", "PG", "orders", "ID", "", "", "", 5, 3, 0, "", False)
    ends = [
        EndTrace(4 + number, "R", "PG", "orders", "ID", "", "", "", 2, "ID", state, number == 2)
        for number, state in enumerate(("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"))
    ]
    written(half, later, failed, *ends, *(RecallTrace(9, "R", "PG", "orders", "ID", done) for done in (True, False)))
    lines = dledger("message", "trace", "ID").splitlines()[1:]
    words = ["begun", "sent for later", "not sent", "committed", "rolled back", "undecided", "taken back"]
    for line, word in zip(lines, [*words, "not taken back"], strict=True):
        assert word in line
    assert "asked by a broker" in lines[5]


def test_a_missing_trace_is_an_error_that_says_how_to_write_traces():
    written(SENT)
    assert "no trace of message 'OTHER'" in fails_in_one_line("message", "trace", "OTHER")
    assert "trace=True" in fails_in_one_line("message", "trace", "ID", "--topic", "unknown")


def test_ids_of_a_batch_find_its_trace():
    written(SendTrace(1, "R", "PG", "orders", "ID1,ID2", "", "", "", 5, 3, 0, "O1,O2", True))
    assert as_json("message", "trace", "ID2")[0]["message_id"] == "ID1,ID2"


WORDS = st.one_of(
    st.sampled_from(
        ["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", "ID", "null", "true", "\x1b[2J", "\n"]
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.text(max_size=6),
)
BODIES = st.one_of(
    st.binary(max_size=80),
    st.lists(st.lists(WORDS, max_size=15).map("\x01".join), max_size=6)
    .map("\x02".join)
    .map(lambda text: text.encode(errors="surrogatepass")),
    st.builds(
        lambda time, group, state, topic: encode_trace(
            EndTrace(time, "R", group, topic, "ID", "", "", "", 2, "ID", state, True)
        ).encode(errors="surrogatepass"),
        st.integers(-(10**17), 10**17),
        *[st.text(max_size=6)] * 3,
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(BODIES, min_size=1, max_size=4))
def test_message_trace_prints_a_result_or_a_one_line_error_for_any_trace_body(bodies):
    FakeAdmin.trace_bodies[:] = bodies
    for form in ("text", "json"):
        result = CliRunner().invoke(main, ["message", "trace", "ID", "-o", form])
        if result.exit_code:
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        elif form == "json":
            assert all(one["kind"] for one in json.loads(result.stdout))
        else:
            assert "\x1b" not in result.stdout
            assert result.stdout.splitlines()[0].startswith("time")
