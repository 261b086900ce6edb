"""The check of replies convicts replies that go astray, that nobody sent, or that are reported and never came."""

from __future__ import annotations

import msgspec
import pytest
from histories import History, stories, verdict

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


STORIES = stories(
    valid={
        "a reply of its own": Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 3, 10),
        "the first of two": Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 3, 5).replies("a", "a>1", 6, 10),
        "a reply whose replier never heard of it": Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 3, 10, "info"),
        "no reply, for nobody replied": Talk().asks("a", 1, 9, waited=True),
        "no reply, for it was refused": Talk().asks("a", 1, 9, waited=True).replies("a", "a>0", 3, 5, "fail"),
        "a reply that came late": Talk().asks("a", 1, 9, waited=True).replies("a", "a>0", 8, 12),
        "a reply that overtook the answer to the send": Talk().asks("a", 1, 9).replies("a", "a>0", 3, 5),
        "refused": Talk().asks("a", 1, 9, outcome="fail"),
    },
    invalid={
        "the reply of another one": Talk().asks("a", 1, 9, "b>0").replies("b", "b>0", 3, 5),
        "one reply for two":
            Talk().asks("a", 1, 9, "a>0").asks("b", 1, 9, "a>0").replies("a", "a>0", 3, 5).replies("b", "a>0", 3, 5),
        "a reply that nobody sent": Talk().asks("a", 1, 9, "a>0"),
        "a reply before it was sent": Talk().asks("a", 1, 9, "a>0").replies("a", "a>0", 11, 12),
        "in vain, though its replier was heard": Talk().asks("a", 1, 9, waited=True).replies("a", "a>0", 3, 5),
        "in vain, when all was healed": Talk().asks("a", 1, 9, process=FINAL, waited=True),
    },
    unknown={
        "nobody asks": Talk().replies("a", "a>0", 3, 5),
    },
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_the_reply_checker_compares_requests_with_their_replies(story):
    talk, expected = STORIES[story]
    found = verdict("replied", talk.history.run())
    assert found.result == expected, found


def test_a_request_without_an_end_waits_too_long():
    talk = Talk().asks("a", 1, 9)
    talk.history.operations[0] = msgspec.structs.replace(talk.history.operations[0], complete_ns=None, extras={})
    assert verdict("replied", talk.history.run()).result == "invalid"
