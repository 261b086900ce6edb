"""A report says what happened on one page that needs nothing else."""

import re
from html.parser import HTMLParser

import msgspec
from histories import NODES, History

from dledger_chaos.checkers.judge import judge
from dledger_chaos.report import summarize, write_report
from dledger_chaos.report.series import Stretch, intervals, stretches
from dledger_chaos.report.summary import Summary

SECOND = 10**9


def history():
    """Ten messages in a second, of which one is lost; a leader is killed and another one leads."""
    made = History()
    for number in range(10):
        made.send(
            f"m<{number}>", number, process="one-0", begin=number * SECOND // 10, end=number * SECOND // 10 + 10**6
        )
    made.end([f"m<{number}>" for number in range(9)])
    made.event("status", 0, node=NODES[0], role="leader", term=1, ready=True)
    made.event("fault-begin", SECOND // 4, "kill-leader", id=1, nodes=[NODES[0]], fault={}, **{"class": "process"})
    made.event("process", SECOND // 4, "ended", node=NODES[0])
    made.event("status", SECOND // 2, node=NODES[1], role="leader", term=2, ready=True)
    made.event("status", SECOND * 3 // 4, node=NODES[1], role="leader", term=2, ready=True)
    made.event("fault-end", SECOND * 3 // 4, "kill-leader", id=1)
    made.event("fault-begin", SECOND // 8, "transfer", id=2, nodes=[NODES[1]], fault={}, **{"class": "membership"})
    made.event("fault-end", SECOND // 8, "transfer", id=2, injected=False)
    made.event("note", SECOND, "a <note>")
    return made


def report(tmp_path):
    run = history().run(tmp_path)
    return write_report(run, judge(run)).read_text()


class Loaded(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.addresses = []
        self.open = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in {"src", "srcset", "href", "xlink:href", "data", "action"} and not value.startswith("#"):
                self.addresses.append(value)
        self.open.append(tag)


def test_the_page_loads_nothing(tmp_path):
    parser = Loaded()
    page = report(tmp_path)
    parser.feed(page)
    assert parser.addresses == []
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert {"svg", "table", "style"} <= set(parser.open)
    assert "script" not in parser.open


def test_the_page_shows_the_verdict_each_check_the_faults_and_how_to_repeat_it(tmp_path):
    page = report(tmp_path)
    assert '<span class="badge invalid">invalid</span>' in page
    assert "<code>lost</code>" in page
    assert "dledger chaos run" in page
    assert "kill-leader" in page


def test_what_clients_and_nodes_said_is_text_and_no_markup(tmp_path):
    page = report(tmp_path)
    assert "m&lt;9&gt;" in page
    assert "m<9>" not in page
    assert "a &lt;note&gt;" in page


def test_the_same_is_there_as_json(tmp_path):
    run = history().run(tmp_path)
    verdicts = judge(run)
    write_report(run, verdicts)
    again = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Summary)
    assert again == msgspec.json.decode(msgspec.json.encode(summarize(run, verdicts)), type=Summary)
    assert (again.verdict, again.messages, again.families) == ("invalid", 10, {"process": 1})
    (fault,) = again.faults
    assert (fault.name, fault.begin_s, fault.end_s) == ("kill-leader", 0.25, 0.75)
    assert again.checks[0].result == "invalid"


def test_messages_are_counted_in_the_interval_in_which_they_were_acknowledged():
    cut = intervals(history().run(), 10)
    assert [interval.acknowledged_per_s for interval in cut] == [10.0] * 10
    assert [interval.p50_ms for interval in cut] == [1.0] * 10


def test_a_lane_joins_equal_samples_and_ends_with_the_process():
    assert stretches(history().run()) == [
        Stretch(NODES[0], "leader", 1, 0.0, 0.25),
        Stretch(NODES[1], "leader", 2, 0.5, 0.75),
    ]


def test_a_run_in_which_nothing_happened_has_a_report(tmp_path):
    run = History().run(tmp_path)
    assert "unknown" in write_report(run, judge(run)).read_text()
