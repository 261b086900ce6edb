"""Requests to group leaders: the right leader gets a change, in the right form."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dledger.net.proof import Gatekeeper, ProofError
from dledger_admin.errors import AdminError
from dledger_admin.health.reports import NameServerAnswer, NodeAnswer, NodeReport, Survey
from dledger_admin.leaders import Leader, ask_to_lead, ask_to_remove, leader_with, leaders_among
from dledger_remoting.route import BrokerData

SECRET = b"s" * 32
A = Leader("broker-a", "n0", ["n0", "n1", "n2"], None)
B = Leader("broker-b", "m0", ["m0", "n1"], None)


def test_the_leader_of_the_group_with_the_member_is_asked():
    assert leader_with([A, B], "n2", None) is A
    assert leader_with([A, B], "m0", None) is B
    assert leader_with([A, B], "n1", "broker-b") is B


@pytest.mark.parametrize(
    ("leaders", "node_id", "group", "words"),
    [
        ([A, B], "n1", None, "member of broker-a, broker-b: say of which group with --broker-group"),
        ([A, B], "n9", None, r"members are broker-a \(led by n0\): n0, n1, n2; broker-b \(led by m0\): m0, n1"),
        ([A, B], "n0", "broker-b", r"members are broker-b \(led by m0\)"),
        ([], "n0", None, "no leader of any group is found"),
        ([A], "n0", "broker-b", "no leader of broker-b is found"),
    ],
)
def test_an_unknown_node_is_refused_with_the_known_nodes(leaders, node_id, group, words):
    with pytest.raises(AdminError, match=words):
        leader_with(leaders, node_id, group)


@pytest.mark.parametrize(("told", "found"), [("10.0.0.1:10913", ("10.0.0.1", 10913)), (None, None)])
def test_a_leader_tells_where_its_http_port_is(told, found):
    report = NodeReport(
        node_id="n0", group="broker-a", role="leader", term=3, commit_index=1, applied_index=1, first_position=0,
        last_position=1, durable_position=1, ready=True, voters=["n0", "n1"], learners=["n2"],
    )  # fmt: skip
    listed = {"broker-a": BrokerData("c", "broker-a", {0: "10.0.0.1:10911"})}
    survey = Survey(
        [NameServerAnswer(address="ns:9876", groups=listed)], {"10.0.0.1:10911": NodeAnswer(http=told, report=report)}
    )
    assert leaders_among(survey) == [Leader("broker-a", "n0", ["n0", "n1", "n2"], found)]


@contextmanager
def leader_that_wants_proof() -> Iterator[tuple[Leader, list[str]]]:
    """Run a leader's HTTP port that requires proofs. Yield it and the requests that passed."""
    gate = Gatekeeper(SECRET, time.monotonic)
    passed: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            try:
                gate.check(self.command, self.path, self.headers.get("Authorization", ""))
            except ProofError as error:
                self.send_response(401)
                self.send_header("WWW-Authenticate", gate.challenge())
                text = str(error)
            else:
                passed.append(f"{self.command} {self.path}")
                text = "done"
                self.send_response(409 if self.path.endswith("stranger") else 200)
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_DELETE = handle_one  # noqa: N815 - as http.server has it

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Leader("broker-a", "n0", ["n0"], ("127.0.0.1", server.server_port)), passed
        finally:
            server.shutdown()
            thread.join()


def test_requests_to_a_leader_carry_a_proof_of_the_right_secret_and_return_its_answer():
    with leader_that_wants_proof() as (leader, passed):
        assert ask_to_lead(leader, "n1", SECRET) == "done"
        assert ask_to_remove(leader, "n/2", SECRET) == "done"
        with pytest.raises(AdminError, match="n0, which leads, refuses: done"):
            ask_to_lead(leader, "stranger", SECRET)
        with pytest.raises(AdminError, match="the secret is not this group's"):
            ask_to_lead(leader, "n1", b"t" * 32)
    assert passed == ["PUT /leader/n1", "DELETE /members/n%2F2", "PUT /leader/stranger"]


def test_a_leader_that_cannot_be_asked_is_named():
    with pytest.raises(AdminError, match="has no HTTP port: set http_port"):
        ask_to_lead(A, "n1", SECRET)
    with leader_that_wants_proof() as (leader, _):
        pass
    with pytest.raises(AdminError, match="n0, which leads, cannot be asked at 127"):
        ask_to_lead(leader, "n1", SECRET)
