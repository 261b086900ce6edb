"""A report describes a run on one self-contained page."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest
from histories import NODES, History

from dledger_chaos.checkers.judge import judge
from dledger_chaos.report import summarize, write_report
from dledger_chaos.report.charts import shown_seconds
from dledger_chaos.report.series import Interval
from dledger_chaos.report.summary import Summary

SECOND = 10**9


def history():
    """Return a history of ten messages in a second, one of them lost, with a leader kill and a new leader."""
    made = History()
    for number in range(10):
        begin = number * SECOND // 10
        made.send(f"m<{number}>", number, process="one-0", begin=begin, end=begin + 10**6)
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


@pytest.fixture
def reported(tmp_path):
    """Return the run, its verdicts and the page of its report."""
    run = history().run(tmp_path)
    verdicts = judge(run)
    return run, verdicts, write_report(run, verdicts).read_text()


class Loaded(HTMLParser):
    """Parser that lists everything that a browser would load."""

    def __init__(self):
        super().__init__()
        self.addresses = []
        self.open = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in {"src", "srcset", "href", "xlink:href", "data", "action"} and not value.startswith("#"):
                self.addresses.append(value)
        self.open.append(tag)


def test_the_page_loads_nothing_and_escapes_text_of_clients_and_nodes(reported):
    parser, (_, _, page) = Loaded(), reported
    parser.feed(page)
    assert parser.addresses == []
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert {"svg", "table", "style"} <= set(parser.open)
    assert "script" not in parser.open
    assert "m&lt;9&gt;" in page
    assert "m<9>" not in page
    assert "a &lt;note&gt;" in page


def test_the_same_is_there_as_json(tmp_path, reported):
    run, verdicts, _ = reported
    again = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Summary)
    assert again == msgspec.json.decode(msgspec.json.encode(summarize(run, verdicts)), type=Summary)
    assert (again.verdict, again.messages, again.families) == ("invalid", 10, {"process": 1})
    (fault,) = again.faults
    assert (fault.name, fault.begin_s, fault.end_s) == ("kill-leader", 0.25, 0.75)
    assert again.checks[0].result == "invalid"


def test_the_time_axis_ends_with_the_last_client_operation_or_fault():
    cut = [Interval(float(at), 10.0 if at < 4 else 0.0, 0.0, None, None) for at in range(0, 20, 2)]
    summary = SimpleNamespace(seconds=20.0, faults=[SimpleNamespace(begin_s=1.0, end_s=5.0)])
    assert shown_seconds(cut, summary) == 5.0
    summary.faults = []
    assert shown_seconds(cut, summary) == 4.0
    assert shown_seconds([], summary) == 20.0


def test_a_run_in_which_nothing_happened_has_a_report(tmp_path):
    run = History().run(tmp_path)
    assert "unknown" in write_report(run, judge(run)).read_text()
