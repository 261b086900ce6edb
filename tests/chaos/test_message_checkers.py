"""Each check convicts a history that breaks its promise, and passes one that keeps it."""

import pytest
from histories import NODES, QUEUE, History, verdict

from dledger_chaos.checkers.base import Check, Judgement, NodeFiles
from dledger_chaos.checkers.judge import headline, judge, overall, unjudged
from dledger_chaos.checkers.messages import Messages

OTHER = "T/broker-a/1"


def clean():
    """Return a history of three messages, the last of unknown outcome, and a batch. All are read at the end."""
    return History().send("a", 0).send("b", 1).batch(["c", "d"], 2).send("e").end(["a", "b", "c", "d", "e"])


MESSAGE_CHECKS = (
    "lost", "phantom", "refused", "duplicated", "offset-given-twice", "gaps", "torn-batch", "reordered", "two-values",
)  # fmt: skip


@pytest.mark.parametrize("name", MESSAGE_CHECKS)
def test_a_history_without_a_fault_is_valid_and_an_empty_one_proves_nothing(name):
    found = verdict(name, clean().run())
    assert found.result == "valid", found
    assert found.figures["checked"] > 0
    assert verdict(name, History().run()).result == "unknown"


VIOLATIONS = {
    "an acknowledged message is nowhere": ("lost", History().send("a", 0).send("b", 1).end(["a"])),
    "one is gone from the middle": ("lost", History().send("a", 0).send("b", 1).send("c", 2).end(["a", None, "c"])),
    "one is gone from one node": ("lost", History().send("a", 0).send("b", 1).end(["a", "b"], n1=[None, "b"])),
    "one lies elsewhere": ("lost", History().send("a", 0).send("b", 1).end(["b", "a"])),
    "the end is gone": ("lost", History().send("a", 0).send("b", 1).end(["a"])),
    "a whole queue is empty": ("lost", History().send("a", 0).add("bounds", QUEUE, [0, 0])),
    "a queue begins later, and nothing trims": ("lost", History().send("a", 0).send("b", 1).end(["b"], first=1)),
    "a queue begins later, of a client that tells no bytes": (
        "lost", History().add("send-repeating", "T", "a", queue=QUEUE, offset=0, position=-1).end(["b"], first=1),
    ),
    "one of a batch is gone": ("lost", History().batch(["a", "b"], 0).send("c", 2).end(["a", None, "c"])),
    "a message nobody sent": ("phantom", History().send("a", 0).end(["a", "x"])),
    "a damaged body": ("phantom", History().send("a", 0).end(["damaged:9:00"])),
    "a message nobody sent, on one node": ("phantom", History().send("a", 0).end(["a"], n2=["x"])),
    "refused with 14, and stored": ("refused", History().send("a", outcome="fail", code=14).end(["a"])),
    "one send, two messages": ("duplicated", History().send("a", 0).end(["a", "a"])),
    "one of unknown outcome twice": ("duplicated", History().send("a").end(["a", "a"])),
    "one way, twice": ("duplicated", History().send("a", f="send-oneway").end(["a", "a"])),
    "one offset for two": ("offset-given-twice", History().send("a", 0).send("b", 0).end(["b"])),
    "one offset for a message and one of a batch": ("offset-given-twice", History().send("a", 1).batch(["b", "c"], 0)),
    "an empty offset": ("gaps", History().send("a", 0).end(["a", None, "b"])),
    "half a batch": ("torn-batch", History().batch(["a", "b"]).end(["a"])),
    "a batch with something between": ("torn-batch", History().batch(["a", "b"]).send("x").end(["a", "x", "b"])),
    "a batch backwards": ("torn-batch", History().batch(["a", "b"]).end(["b", "a"])),
    "later, but before": ("reordered", History().send("a", 1).send("b", 0).end(["b", "a"])),
    "later and of unknown outcome, but before": ("reordered", History().send("b", 1).send("a").end(["a", "b"])),
    "one of a later batch of unknown outcome lies before": (
        "reordered", History().send("b", 1).batch(["a", "c"]).end(["a", "b", "c"]),
    ),
    "a repetition lies before what was acknowledged before its send": (
        "reordered", History().send("b", 1).send("a", 2, f="send-repeating").end(["a", "b", "a"]),
    ),
    "two readers see different messages": ("two-values", History().pull(["a"]).pull(["b"]).end(["b"])),
    "two nodes differ at the end": ("two-values", History().send("a", 0).end(["a"], n1=["b"])),
    "one message lies at two bytes": ("two-values", History().pull(["a"]).add("pull", QUEUE, [(0, "a", 77)], node="n",
        offset=0, code=0, next_offset=1)),
}  # fmt: skip


@pytest.mark.parametrize("story", VIOLATIONS)
def test_a_history_that_breaks_a_promise_is_invalid(story):
    name, history = VIOLATIONS[story]
    found = verdict(name, history.run())
    assert found.result == "invalid", found
    assert found.examples


ALLOWED = {
    "a repeated message lies twice": ("duplicated", History().send("a", 1, f="send-repeating").end(["a", "a"])),
    "messages under way at the same time lie anyhow": (
        "reordered", History().send("a", 1, begin=1, end=20).send("b", 0, begin=5, end=9).end(["b", "a"]),
    ),
    "a message of unknown outcome that was under way lies anyhow": (
        "reordered", History().send("a", begin=1, end=20).send("b", 1, begin=2, end=9).end(["a", "b"]),
    ),
    "the second copy of a repeated message lies behind a later one": (
        "reordered", History().send("a", 0, f="send-repeating").send("b", 1).end(["a", "b", "a"]),
    ),
    "later messages in other queues": ("reordered", History().send("a", 1).send("b", 0, queue="T/broker-a/1")),
    "retention has taken the first": ("lost", History("retention").send("a", 0).send("b", 1).end(["b"], first=1)),
    "an unknown batch is nowhere": ("torn-batch", History().batch(["a", "b"]).send("x", 0).end(["x"])),
    "retention has taken half a batch": ("torn-batch", History().batch(["a", "b"], 0).end(["b"], first=1)),
}  # fmt: skip


@pytest.mark.parametrize("story", ALLOWED)
def test_allowed_histories_are_valid(story):
    name, history = ALLOWED[story]
    found = verdict(name, history.run())
    assert found.result == "valid", found


@pytest.mark.parametrize(("workload", "expected"), [("retention", "valid"), ("append", "invalid")])
@pytest.mark.parametrize("name", ["lost", "gaps"])
def test_a_gap_in_a_read_is_valid_only_if_the_workload_trims_the_log(name, workload, expected):
    history = History(workload).send("a", 0).send("b", 1).add("bounds", QUEUE, [0, 2])
    history.pull([], 0, f="scan", code=21, next_offset=1).pull(["b"], 1, f="scan")
    assert verdict(name, history.run()).result == expected


def test_messages_removed_by_retention_are_counted():
    found = verdict("lost", History("retention").send("a", 0).send("b", 1).end(["b"], first=1).run())
    assert found.figures["trimmed"] == 1
    assert unjudged([found]) == 1
    assert headline([found]) == "valid, but for 1 acknowledged messages that trims took before they were judged"


@pytest.mark.parametrize(
    ("node", "begin", "kind", "expected"),
    [
        (NODES[0], 5, "bit-rot", "valid"),
        (NODES[1], 5, "bit-rot", "invalid"),
        (NODES[0], 900, "bit-rot", "invalid"),
        (NODES[0], 5, "fsync-slow", "invalid"),
    ],
)
def test_damaged_reads_are_excused_only_on_a_node_with_bit_rot_at_that_time(node, begin, kind, expected):
    history = History("followers").send("a", 0).pull(["damaged:9:00"]).pull(["a"]).end(["a"])
    history.event("fault-begin", begin, kind, id=1, nodes=[node]).event("fault-end", begin + 60, kind, id=1)
    assert verdict("two-values", history.run()).result == expected
    assert verdict("dirty-read", history.run()).result == expected


@pytest.mark.parametrize(("first_byte", "expected"), [(100, "valid"), (0, "invalid")])
def test_without_trims_only_messages_before_the_start_of_the_log_may_be_missing(tmp_path, first_byte, expected):
    """Without a trim, messages may be lost only if the log itself begins later."""
    (tmp_path / "n0" / "commitlog").mkdir(parents=True)
    (tmp_path / "n0" / "commitlog" / f"{first_byte:020}").touch()
    history = History().send("a", 0).send("b", 1).end(["b"], first=1)
    files = [NodeFiles(NODES[0], "broker-a", "n0", [])]
    assert verdict("lost", history.run(tmp_path, files=files)).result == expected


UNREAD = {
    "nothing was read": History().send("a", 0),
    "the end is not known": History().send("a", 0).add("bounds", QUEUE, None, "fail"),
    "a node was not read to the end": History().send("a", 0).send("b", 1).end(["a", "b"], n1=["a"]),
    "a queue is not there any more": History().send("a", 0).send("b", 0, queue=OTHER).end(["a"]),
    "half of it was read": History().send("a", 0).send("b", 1).end(["a"]).add("bounds", QUEUE, [0, 2]),
    "a node did not answer": History().send("a", 0).end(["a"]).add("scan", QUEUE, [], "fail", node="n1", offset=0),
}


@pytest.mark.parametrize("story", UNREAD)
def test_histories_without_a_final_read_are_unknown(story):
    assert verdict("lost", UNREAD[story].run()).result == "unknown"


def test_a_node_without_a_final_read_makes_the_verdict_unknown():
    files = [NodeFiles(node, "broker-a", node, []) for node in NODES]
    for nodes, expected in ((NODES, "valid"), (NODES[:2], "unknown")):
        assert verdict("lost", History().send("a", 0).end(["a"], nodes=nodes).run(files=files)).result == expected


def test_refused_sends_and_batches_of_a_half_read_queue_or_an_unread_topic_are_unknown():
    half_read = History().batch(["a", "b"]).end(["a"]).add("bounds", QUEUE, [0, 2])
    assert verdict("torn-batch", half_read.run()).result == "unknown"
    read = History().send("a", 0, queue="U/broker-a/0", key="U").end(["a"], queue="U/broker-a/0")
    for history in (History(), read):
        assert verdict("refused", history.send("b", outcome="fail").run()).result == "unknown"
        assert verdict("torn-batch", history.batch(["c", "d"]).run()).result == "unknown"


def test_ten_examples_are_shown_and_all_violations_counted():
    history = History()
    for number in range(12):
        history.send(f"m{number}", number)
    found = verdict("lost", history.end([None] * 12 + ["x"]).run())
    assert (found.summary.split()[0], len(found.examples)) == ("12", 10)


def test_the_run_is_as_bad_as_its_worst_verdict_and_a_checker_that_fails_is_unknown():
    def says(name, result):
        return Check(name, "", lambda _: Judgement(result, ""))

    def broken(_):
        raise KeyError("offset")

    run = clean().run()
    good, bad, unsure = says("a", "valid"), says("b", "invalid"), says("c", "unknown")
    assert overall(judge(run, [good, good])) == "valid"
    assert overall(judge(run, [good, unsure])) == "unknown"
    assert overall(judge(run, [unsure, bad])) == "invalid"
    assert overall(judge(run, [])) == "unknown"
    (found,) = judge(run, [Check("broken", "", broken)])
    assert (found.result, "KeyError" in found.summary) == ("unknown", True)


def test_a_check_applies_only_to_its_workloads_and_targets():
    check = Check("only", "", lambda _: Judgement("valid", ""), frozenset({"offsets"}), frozenset({"local"}))
    assert not check.applies(clean().run())
    assert not check.applies(History("offsets").run(target="rocketmq"))
    assert check.applies(History("offsets").run())


def test_sent_messages_and_batches_have_their_acknowledged_places():
    sent = Messages(clean().run().operations).sent
    places = {value: (QUEUE, offset) for offset, value in enumerate("abcd")}
    assert {value: one.place for value, one in sent.items()} == places | {"e": None}
