"""View of one broker group, put together from what name servers and nodes told."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .reports import NodeAnswer, NodeReport, PeerReport, Survey

LEADER_ID = 0
"""Broker id under which name servers list a leader."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """State of a broker group. Answers and client addresses are by node id.

    `leader` is the newest leader that accepts writes. `voters` and `learners` are its members; without a leader they
    are those of the node that is furthest. Name servers forget a dead node, so only the other nodes know that it is
    missing. `strangers` are registered addresses at which no node told its id.
    """

    name: str
    answers: Mapping[str, NodeAnswer]
    addresses: Mapping[str, str]
    strangers: list[str]
    leader: NodeReport | None
    voters: list[str]
    learners: list[str]

    @property
    def node_ids(self) -> list[str]:
        """Members, and nodes that answer and are none."""
        return sorted({*self.voters, *self.learners, *self.answers})

    def report(self, node_id: str) -> NodeReport | None:
        """Return the report of a node about itself."""
        answer = self.answers.get(node_id)
        return None if answer is None else answer.report

    def peer(self, node_id: str) -> PeerReport | None:
        """Return the leader's report about a node, None if there is none."""
        peers = () if self.leader is None else self.leader.peers
        return next((peer for peer in peers if peer.node_id == node_id), None)


def group_views(survey: Survey) -> list[GroupView]:
    """Return every broker group that a name server or a node knows of, by name."""
    names = {name for name_server in survey.name_servers for name in name_server.groups or {}}
    names |= {report.group for answer in survey.nodes.values() if (report := _report_in(answer)) is not None}
    return [_build_view(name, survey) for name in sorted(names)]


def _build_view(name: str, survey: Survey) -> GroupView:
    reports: list[NodeReport] = []
    answers: dict[str, NodeAnswer] = {}
    addresses: dict[str, str] = {}
    for address, answer in survey.nodes.items():
        report = _report_in(answer)
        if report is not None and report.group == name and isinstance(answer, NodeAnswer):
            reports.append(report)
            answers[report.node_id], addresses[report.node_id] = answer, address
    reports.sort(key=_progress_key, reverse=True)
    leader = next((report for report in reports if report.leads), None)
    source = leader or (reports[0] if reports else None)
    for report in (source, *reports):
        if report is not None:
            addresses = {**answers[report.node_id].addresses, **addresses}
    listed = {
        address
        for name_server in survey.name_servers
        if name_server.groups is not None and name in name_server.groups
        for address in name_server.groups[name].broker_addrs.values()
    }
    return GroupView(
        name=name,
        answers=answers,
        addresses=addresses,
        strangers=sorted(listed - set(addresses.values())),
        leader=leader,
        voters=source.voters if source else [],
        learners=source.learners if source else [],
    )


def _report_in(answer: NodeAnswer | str) -> NodeReport | None:
    return answer.report if isinstance(answer, NodeAnswer) else None


def _progress_key(report: NodeReport) -> tuple[int, int]:
    return report.term, report.commit_index
