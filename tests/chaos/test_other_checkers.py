"""Checks of reads, offsets, deliveries, topics and processes convict a history that breaks their promise."""

import asyncio
from random import Random

import pytest
from histories import NODES, QUEUE, History, applies, verdict

from dledger_chaos.checkers.base import NodeFiles
from dledger_chaos.checkers.recovery import client_gaps, percentile
from dledger_chaos.history import Recorder, read_operations
from dledger_chaos.workloads import offsets as offsets_workload
from dledger_chaos.workloads.base import NodeAddresses, WorkloadContext
from dledger_chaos.workloads.reading import TopicReader
from dledger_client import MessageQueue

KEY = f"G@{QUEUE}"
SECOND = 10**9


def offsets():
    return History("offsets")


def consumers():
    return History("consumers").send("a", 0).send("b", 1)


def deliver(history, *messages, process="m"):
    for offset, value in messages:
        history.add("deliver", QUEUE, [offset, value, offset * 100], process=process)
    return history


def committed(history, offset):
    return history.end(["a", "b"]).add("group-offsets", "G", [[QUEUE, offset]])


def killed_leader(*complete_seconds, fault="kill-leader", other=None):
    """Return a history with acknowledgements at these times, and a leader that is killed at 10 s and back at 14 s."""
    history = History("append")
    for at in complete_seconds:
        history.send(f"v{at}", 1, process="one-0", begin=int(at * SECOND) - 5, end=int(at * SECOND))
    history.event("fault-begin", 10 * SECOND, fault, id=1).event("fault-end", 14 * SECOND, fault, id=1)
    if other is not None:
        history.event("fault-begin", int(other * SECOND), "latency", id=2)
        history.event("fault-end", int((other + 1) * SECOND), "latency", id=2)
    return history


def process_that_ended(*, expected):
    started = History().event("process", 1, "started", "n", pid=1)
    return started.event("process", 2, "ended", "n", pid=1, expected=expected)


def healed(history):
    return history.event("phase", SECOND, "heal").event("phase", 3 * SECOND, "converged")


def two_commits(led_by, *, apart=False):
    """Return a history with commits of 1 and 5 through two nodes. Afterwards 1 is read."""
    history = offsets().add("commit", KEY, 1, begin=10, end=11 if apart else 30, node="n1")
    history.add("commit", KEY, 5, begin=12, end=20, node="n2").add("committed", KEY, 1, begin=40, end=50)
    return history.event("status", 15, node=led_by, role="leader")


def three_commits(led_by):
    """Return a history with a commit of 1 during commits of 3 and 5 through other nodes. Afterwards 3 is read."""
    history = offsets().add("commit", KEY, 1, begin=8, end=30, node="n1")
    history.add("commit", KEY, 3, begin=9, end=29, node="n3")
    history.add("commit", KEY, 5, begin=12, end=20, node="n2").add("committed", KEY, 3, begin=40, end=50)
    return history.event("status", 15, node=led_by, role="leader")


VALID = {
    "what was read is there": ("dirty-read", History("followers").send("a", 0).pull(["a"]).end(["a"])),
    "what was read was trimmed since": (
        "dirty-read", History("retention").send("a", 0).send("b").pull(["a", "b", "c"]).send("c", 2).end(["c"], first=2)
    ),
    "a late reader is sent to the first offset": (
        "retention", History("retention").pull([], 0, code=21, next_offset=5).end(["a"], first=5),
    ),
    "found at once": ("unreadable", History().send("a", 0).view(0, "a", "a").add("end", QUEUE, 1)),
    "an end that was asked for before the acknowledgement": (
        "unreadable", History().send("a", 5, begin=1, end=90).add("end", QUEUE, 0, begin=2, end=3),
    ),
    "a read behind the end": ("unreadable", History("followers").send("a", 0).pull([], 9, code=21, next_offset=1)),
    "offsets that rise": ("offset-back", offsets().add("commit", KEY, 1).add("committed", KEY, 1)),
    "an unknown commit that shows": (
        "offset-back", offsets().add("commit", KEY, 1).add("commit", KEY, 5, "info").add("committed", KEY, 5),
    ),
    "an unknown commit that does not": (
        "offset-back", offsets().add("commit", KEY, 1).add("commit", KEY, 5, "info").add("committed", KEY, 1),
    ),
    "an offset read while a higher one was being committed": (
        "offset-back", offsets().add("commit", KEY, 1, begin=1, end=2).add("commit", KEY, 5, begin=3, end=9)
        .add("committed", KEY, 1, process="reader", begin=8, end=20)
        .add("committed", KEY, 5, process="another", begin=10, end=12),
    ),
    "commits under way at the same time": (
        "offset-back", offsets().add("commit", KEY, 5, begin=2, end=3).add("commit", KEY, 1, begin=1, end=8)
        .add("committed", KEY, 5, begin=9, end=10),
    ),
    "two commits at once, of which the leader got the lower one itself": ("offset-back", two_commits(led_by="n1")),
    "a commit passed on that raised what such a lower one had left": ("offset-back", three_commits(led_by="n1")),
    "everything delivered, some twice": (
        "undelivered", committed(deliver(consumers(), (0, "a"), (0, "a"), (1, "b")), 2),
    ),
    "delivered and not committed": ("undelivered", committed(deliver(consumers(), (0, "a"), (1, "b")), None)),
    "delivered again from the start": (
        "delivery-order", deliver(consumers(), (0, "a"), (1, "b"), (0, "a"), (1, "b")),
    ),
    "a topic made, deleted, made": (
        "catalogue",
        History("catalogue").add("read", "topic:T", False).add("create", "topic:T", True).add("read", "topic:T", True)
        .add("delete", "topic:T", False, "info").add("read", "topic:T", True).add("read", "topic:T", False),
    ),
    "a short wait": ("failover", killed_leader(9.9, 10.8, 11, 12, 13, 14.5)),
    "a grey node beside which sends go on": ("grey", killed_leader(9.9, 12, 13, 14.5, fault="grey-disk")),
    "whole again": ("recovered", healed(History().send("a", 0).event("note", SECOND, "x"))),
    "killed": ("ended", process_that_ended(expected=True)),
    "a repeated idempotent send lies once": (
        "idempotent", History().send("a", 0, f="send-idempotent").send("b", f="send-idempotent").end(["a", "b"]),
    ),
    "modest use": ("resources", History().event("usage", 1, node="n", resident_bytes=10**8, open_files=50)),
}  # fmt: skip

INVALID = {
    "read, and gone": ("dirty-read", History("followers").pull(["a"]).end([])),
    "read, and another now": ("dirty-read", History("followers").pull(["a"]).end(["b"])),
    "read where another was acknowledged, and trimmed since": (
        "dirty-read", History("retention").send("a", 0).send("b", 1).pull(["b"]).end(["c"], first=2),
    ),
    "read, sent by nobody, and trimmed since": (
        "dirty-read", History("retention").send("a", 1).pull(["x"]).end(["a"], first=1),
    ),
    "refused, read all the same, and trimmed since": (
        "dirty-read", History("retention").send("a", outcome="fail").pull(["a"]).pull(["b"], 1).end(["b"], first=1),
    ),
    "sent behind the first offset": (
        "retention", History("retention").pull([], 0, code=21, next_offset=6).end(["a"], first=5),
    ),
    "given another offset than asked for": (
        "retention",
        History("retention").pull(["b"], 3, offset=2).pull([], 0, code=21, next_offset=1).end(["a"], first=1),
    ),
    "not found by id": ("unreadable", History().send("a", 0).view(0, "a", None)),
    "another found by id": ("unreadable", History().send("a", 0).view(0, "a", "b")),
    "an end below an acknowledged message": ("unreadable", History().send("a", 5).add("end", QUEUE, 5)),
    "a pull that passes over a message": ("unreadable", History("followers").pull(["a", None, "c"])),
    "a pull that sends its reader past a message": ("unreadable", History("followers").pull(["a"], next_offset=2)),
    "a reader sent back below an acknowledged message": (
        "unreadable", History("followers").send("a", 5).pull([], 9, code=21, next_offset=3),
    ),
    "an offset that goes back": (
        "offset-back", offsets().add("commit", KEY, 1).add("commit", KEY, 5).add("committed", KEY, 1),
    ),
    "an offset that was read and goes back": (
        "offset-back",
        offsets().add("commit", KEY, 1).add("commit", KEY, 5, "info").add("committed", KEY, 5).add("committed", KEY, 1),
    ),
    "an offset that another process has read and goes back": (
        "offset-back", offsets().add("commit", KEY, 1).add("commit", KEY, 5, "info")
        .add("committed", KEY, 5, process="reader").add("committed", KEY, 1, process="another"),
    ),
    "an offset that an overtaken commit took back": (
        "offset-back", offsets().add("commit", KEY, 5, begin=2, end=3).add("commit", KEY, 1, begin=1, end=8)
        .add("committed", KEY, 1, begin=4, end=10),
    ),
    "two commits at once, of which the lower one was passed on": ("offset-back", two_commits(led_by="n2")),
    "three commits at once, of which both lower ones were passed on": ("offset-back", three_commits(led_by="n2")),
    "two commits, the lower one at the leader and long over": ("offset-back", two_commits(led_by="n1", apart=True)),
    "an offset read before it was committed": (
        "offset-back", offsets().add("committed", KEY, 1, begin=1, end=2).add("commit", KEY, 1, begin=3, end=4),
    ),
    "an offset that is gone": ("offset-back", offsets().add("commit", KEY, 1).add("committed", KEY, None)),
    "an offset nobody committed": ("offset-back", offsets().add("commit", KEY, 1).add("committed", KEY, 2)),
    "a message that no member was given": ("undelivered", committed(deliver(consumers(), (0, "a")), 1)),
    "one skipped below the committed offset": ("undelivered", committed(deliver(consumers(), (1, "b")), 2)),
    "first deliveries backwards": ("delivery-order", deliver(consumers(), (1, "b"), (0, "a"))),
    "a topic that was made is not there": (
        "catalogue", History("catalogue").add("create", "topic:T", True).add("read", "topic:T", False),
    ),
    "a deleted group is back": (
        "catalogue", History("catalogue").add("create", "group:G", True).add("delete", "group:G", False)
        .add("read", "group:G", True),
    ),
    "a long wait": ("failover", killed_leader(9.9, 13.5, 14.5)),
    "a client that a grey node holds up": ("grey", killed_leader(9.9, 15.5, 16, fault="grey-disk")),
    "a client that never comes back": (
        "failover", killed_leader(9.8, 9.9).event("phase", 15 * SECOND, "final-reads"),
    ),
    "whole again, but too late": (
        "recovered", History().send("a", 0).event("phase", SECOND, "heal").event("phase", 92 * SECOND, "converged"),
    ),
    "never whole again": ("recovered", History().event("phase", SECOND, "heal")),
    "ended by itself": ("ended", process_that_ended(expected=False)),
    "an idempotent send lies twice": ("idempotent", History().send("a", 0, f="send-idempotent").end(["a", "a"])),
    "too much memory": ("resources", History().event("usage", 1, node="n", resident_bytes=2 << 30, open_files=50)),
    "too many files": ("resources", History().event("usage", 1, node="n", resident_bytes=1, open_files=5000)),
}  # fmt: skip

UNKNOWN = {
    "never healed": ("recovered", History()),
    "a workload failed": ("recovered", healed(History().send("a", 0).event("note", 3, "broken", trouble=True))),
    "topics were made, and never looked up": (
        "catalogue", History("catalogue").add("create", "topic:T", True).add("read", "topic:T", None, "fail"),
    ),
    "registers were written, and never read": (
        "linearizable", History("registers").add("write", "r1", 1).add("read", "r1", None, "info"),
    ),
    "nobody got anything done": ("recovered", healed(History().send("a"))),
    "only the final reads came through": (
        "recovered", healed(History().event("phase", 1, "final-reads").end(["a"])),
    ),
    "the final offset was not read": ("offset-back", offsets().add("committed", KEY, None, "fail", process="final")),
    "the group's offsets were not read": ("undelivered", deliver(consumers(), (0, "a"), (1, "b")).end(["a", "b"])),
    "a queue that was read is not there any more": (
        "dirty-read", History("followers").pull(["a"]).pull(["b"], queue="T/broker-a/1").end(["a"]),
    ),
    "the queue was read in part": (
        "dirty-read", History("followers").pull(["a", "b"]).end(["a"]).add("bounds", QUEUE, [0, 2]),
    ),
    "the queue was not read": ("dirty-read", History("followers").pull(["a"])),
}  # fmt: skip


@pytest.mark.parametrize("story", VALID)
def test_histories_that_keep_a_promise_are_valid(story):
    name, history = VALID[story]
    found = verdict(name, history.run())
    assert (found.result, found.examples) == ("valid", ())


@pytest.mark.parametrize("story", [*INVALID, *UNKNOWN])
def test_histories_that_break_a_promise_are_invalid_and_those_that_lack_observations_unknown(story):
    name, history = (INVALID | UNKNOWN)[story]
    assert verdict(name, history.run()).result == ("invalid" if story in INVALID else "unknown")


@pytest.mark.parametrize(("injected", "expected"), [((), "unknown"), ((False,), "unknown"), ((False, True), "valid")])
def test_a_run_in_which_no_fault_struck_is_unknown(injected, expected):
    history = healed(History().send("a", 0))
    for number, took_effect in enumerate(injected):
        history.event("fault-begin", 1, "kill-all", id=number)
        history.event("fault-end", 2, "kill-all", id=number, injected=took_effect)
    assert verdict("recovered", history.run(faults=["kill-all"])).result == expected


async def test_an_offset_that_cannot_be_read_at_the_end_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(offsets_workload, "_FINAL_SECONDS", 0.05)
    with Recorder(tmp_path) as recorder:
        workload = offsets_workload.OffsetsWorkload()
        nobody = WorkloadContext("127.0.0.1:9", [], Random(1), recorder, asyncio.Event(), frozenset(), tmp_path)
        workload._offsets = [offsets_workload._Offset(nobody, "G", MessageQueue("T", "broker-a", 0))]
        await workload.finish(nobody)
    history = offsets().add("commit", KEY, 1).add("committed", KEY, 1)
    history.operations += read_operations(tmp_path)
    assert verdict("offset-back", history.run()).result == "unknown"


def test_a_wait_is_measured_from_acknowledgement_to_acknowledgement_if_a_kill_was_injected():
    history = killed_leader(9.9, 10.8, 11, 14.5)
    (gap,) = client_gaps(history.run())
    assert (gap.fault, gap.client, gap.alone, round(gap.seconds, 3)) == ("kill-leader", "one-0", True, 3.5)
    history.events[-1].fields["injected"] = False
    assert client_gaps(history.run()) == []


def test_the_report_tells_how_long_sends_took_beside_a_grey_node():
    history = killed_leader(9.9, 12, 14.5, fault="grey-network")
    history.send("slow", 2, process="one-1", begin=11 * SECOND, end=11 * SECOND + 250_000_000)
    figures = verdict("grey", history.run()).figures
    assert (figures["bound_s"], figures["grey-network_p99_ms"]) == (5.0, 250.0)
    assert not applies("grey", killed_leader(9.9, 12).run())


@pytest.mark.parametrize("other", [8.9, 12])
def test_a_wait_under_two_faults_counts_for_neither_fault_alone(other):
    run = killed_leader(9.9, 13.8, 14.5, other=other).run()
    assert not any(gap.alone for gap in client_gaps(run) if gap.fault == "kill-leader")
    assert not applies("failover", run)


def test_idempotence_is_not_judged_under_clocks_that_jump():
    history = History().send("a", 0, f="send-idempotent").end(["a", "a"])
    assert applies("idempotent", history.event("fault-begin", 1, "clock-drift", id=1, **{"class": "clock"}).run())
    assert not applies("idempotent", history.event("fault-begin", 1, "clock-jump", id=2, **{"class": "clock"}).run())


def test_a_percentile_is_one_of_the_values():
    assert [percentile([5, 1, 4, 2, 3], share) for share in (0.01, 0.5, 0.99, 1.0)] == [1, 3, 5, 5]


LOG = "2026-01-01T00:00:00.000Z level={} logger=dledger.node node=n0 {}\n"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (LOG.format("WARNING", "event=unreachable"), "kill-all", "valid"),
        (LOG.format("ERROR", "event=failed error=KeyError()"), "kill-all", "invalid"),
        (LOG.format("ERROR", "event=failed error=OSError(5, '[Errno 5] Input/output error')"), "fsync-fails", "valid"),
        (LOG.format("ERROR", "event=failed error=OSError(5, '[Errno 5] Input/output error')"), "fsync-slow", "invalid"),
        (LOG.format("ERROR", "event=corruption start=1 end=2"), "bit-rot", "valid"),
        (LOG.format("ERROR", "event=corruption start=1 end=2"), "power-loss-all", "invalid"),
        (LOG.format("ERROR", "event=corruption start=1 end=2"), "disk-full-all", "invalid"),
        (LOG.format("INFO", "x") + "Traceback (most recent call last):\n  File\nKeyError\n", "bit-rot", "invalid"),
        ("Task exception was never retrieved\n", "bit-rot", "invalid"),
        ("an error in a layout that nobody knows\n", "bit-rot", "unknown"),
        (None, "bit-rot", "unknown"),
    ],
)
def test_logged_errors_are_valid_only_with_a_fault_that_explains_them(tmp_path, text, kind, expected):
    if text is not None:
        (tmp_path / "broker.log").write_text(text)
    history = History().event("fault-begin", 1, kind, id=1, nodes=[NODES[0]])
    files = [NodeFiles(NODES[0], "broker-a", "n0", ["broker.log"])]
    assert verdict("errors", history.run(tmp_path, files=files)).result == expected


@pytest.mark.parametrize(("level", "expected"), [("WARNING", "valid"), ("ERROR", "invalid")])
def test_no_fault_explains_an_error_of_a_name_server(tmp_path, level, expected):
    (tmp_path / "broker.log").write_text(LOG.format("INFO", "ready"))
    (tmp_path / "namesrv.log").write_text(f"2026-01-01 00:00:00,000 {level} dledger.namesrv says something\n")
    history = History().event("fault-begin", 1, "fsync-fails", id=1, nodes=[NODES[0]])
    files = [NodeFiles(NODES[0], "broker-a", "n0", ["broker.log"])]
    run = history.run(tmp_path, files=files, other_logs=["namesrv.log"])
    assert verdict("errors", run).result == expected


def test_a_fault_of_one_node_excuses_no_error_of_another(tmp_path):
    (tmp_path / "broker.log").write_text(LOG.format("ERROR", "event=corruption start=1 end=2"))
    history = History().event("fault-begin", 1, "bit-rot", id=1, nodes=[NODES[0]])
    files = [NodeFiles(NODES[1], "broker-a", "n1", ["broker.log"])]
    assert verdict("errors", history.run(tmp_path, files=files)).result == "invalid"


@pytest.mark.parametrize(("name", "event"), [("ended", ("process", 1, "started")), ("resources", ("usage", 1, ""))])
def test_a_node_without_observations_makes_a_run_unknown(name, event):
    fields = {"pid": 1, "resident_bytes": 1, "open_files": 1}
    files = [NodeFiles(node, "broker-a", node, []) for node in NODES]
    history = History()
    for node in NODES[:2]:
        history.event(*event, node=node, **fields)
    assert verdict(name, history.run(files=files)).result == "unknown"
    assert verdict(name, history.event(*event, node=NODES[2], **fields).run(files=files)).result == "valid"


@pytest.mark.parametrize(("first_byte", "expected"), [(200, "valid"), (100, "invalid")])
def test_a_queue_may_lose_only_messages_that_the_log_has_lost(tmp_path, first_byte, expected):
    (tmp_path / "n0" / "commitlog").mkdir(parents=True)
    (tmp_path / "n0" / "commitlog" / f"{first_byte:020}").touch()
    history = History("retention").send("a", 0).send("b", 1).pull([], 0, code=21, next_offset=2).end(["c"], first=2)
    files = [NodeFiles(NODES[0], "broker-a", "n0", [])]
    assert verdict("retention", history.run(tmp_path, files=files)).result == expected


def came_too_late(*answers):
    """Return a history of readers with a trimmed offset. `answers` are code, next offset and outcome."""
    history = History("retention").send("a", 0).pull([], 0, code=21, next_offset=1).event("phase", 25, "final-reads")
    history.pull(["a"], 0, NODES[2])  # before the trim
    for node, (code, next_offset, outcome) in zip(NODES, answers, strict=False):
        history.pull([], 0, node, code=code, next_offset=next_offset, outcome=outcome)
    return history.end(["b"], first=1)


TOLD = (21, 1, "ok")


async def test_a_read_cut_off_by_the_end_counts_as_unanswered(tmp_path, monkeypatch):
    monkeypatch.setattr("dledger_chaos.workloads.reading.pull", never_answered)
    topic, broker_group, queue_id = QUEUE.split("/")
    queue, node = MessageQueue(topic, broker_group, int(queue_id)), NodeAddresses(NODES[2], broker_group, "127.0.0.1:1")
    with Recorder(tmp_path) as recorder:
        async with TopicReader("127.0.0.1:1", recorder, "retention") as reader:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await reader.pull(queue, 0, node)
    (cut_off,) = read_operations(tmp_path)
    history = came_too_late(TOLD, TOLD).add("pull", cut_off.key, [], cut_off.outcome, **cut_off.extras)
    found = verdict("retention", history.run(files=[NodeFiles(node, "broker-a", node, []) for node in NODES]))
    assert found.result == "unknown"
    assert found.examples == (f"{NODES[2]} was asked for {QUEUE}@0, and told nobody where to go on",)


async def never_answered(*_arguments, **_options):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((TOLD, TOLD, TOLD), "valid"),
        ((TOLD, TOLD, (19, 0, "ok")), "unknown"),
        ((TOLD, TOLD, (21, 0, "ok")), "unknown"),
        ((TOLD, TOLD, (0, 0, "fail")), "unknown"),
        ((TOLD, TOLD), "unknown"),
        ((TOLD,), "unknown"),
    ],
)
def test_every_node_must_redirect_a_read_below_the_first_kept_offset(answers, expected):
    files = [NodeFiles(node, "broker-a", node, []) for node in NODES]
    assert verdict("retention", came_too_late(*answers).run(files=files)).result == expected
