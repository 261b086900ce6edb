"""The check of replies convicts those that go astray, that nobody sent, and that are said to have come and did not."""

from __future__ import annotations

import msgspec
import pytest
from histories import History, verdict

from dledger_chaos.workloads.replies import FINAL, TOPIC


class Talk:
    """Requests and replies, each with its begin and end."""

    def __init__(self):
        self.history = History("replies")

    def asks(self, value, begin, end, got="", process="p", outcome=None, **more):
        outcome = outcome or ("ok" if got else "info")
        self.history.add("request", TOPIC, value, outcome, process, begin, end, reply=got, **more)
        return self

    def replies(self, value, reply, begin, end, outcome="ok"):
        self.history.add("reply", value, reply, outcome, "replier", begin, end)
        return self


STORIES = {
    "a reply of its own": (Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 3, 10), "valid"),
    "the first of two": (
        Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 3, 5).replies("a", "a>1", 6, 10), "valid",
    ),
    "a reply whose replier never heard of it": (
        Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 3, 10, "info"), "valid",
    ),
    "no reply, for nobody replied": (Talk().asks("a", 1, 9, waited=True), "valid"),
    "no reply, for it was refused": (Talk().asks("a", 1, 9, waited=True).replies("a", "a>0", 3, 5, "fail"), "valid"),
    "a reply that came late": (Talk().asks("a", 1, 9, waited=True).replies("a", "a>0", 8, 12), "valid"),
    "a reply that overtook the answer to the send": (Talk().asks("a", 1, 9).replies("a", "a>0", 3, 5), "valid"),
    "refused": (Talk().asks("a", 1, 9, outcome="fail"), "valid"),
    "the reply of another one": (Talk().asks("a", 1, 9, "b>0").replies("b", "b>0", 3, 5), "invalid"),
    "one reply for two": (
        Talk().asks("a", 1, 9, "a>0").asks("b", 1, 9, "a>0").replies("a", "a>0", 3, 5).replies("b", "a>0", 3, 5),
        "invalid",
    ),
    "a reply that nobody sent": (Talk().asks("a", 1, 9, "a>0"), "invalid"),
    "a reply before it was sent": (Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 11, 12), "invalid"),
    "in vain, though its replier was heard": (
        Talk().asks("a", 1, 9, waited=True).replies("a", "a>0", 3, 5), "invalid",
    ),
    "in vain, when all was healed": (Talk().asks("a", 1, 9, process=FINAL, waited=True), "invalid"),
    "nobody asks": (Talk().replies("a", "a>0", 3, 5), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_requests_are_judged_by_what_was_replied_to_them(story):
    talk, expected = STORIES[story]
    found = verdict("replied", talk.history.run())
    assert found.result == expected, found


def test_a_request_without_an_end_waits_too_long():
    talk = Talk().asks("a", 1, 9)
    talk.history.operations[0] = msgspec.structs.replace(talk.history.operations[0], complete_ns=None, extras={})
    assert verdict("replied", talk.history.run()).result == "invalid"
