"""View of one broker group, put together from what name servers and nodes told."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .reports import NodeAnswer, NodeReport, PeerReport, Survey

LEADER_ID = 0
"""Broker id under which name servers list a leader."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Answers and client addresses are by node id. `leader` is the newest that accepts writes; `voters` and `learners`
    are its members, or, without a leader, as the node knows them that is furthest: a dead node vanishes from name
    servers' lists, and only the others know that it should be there. `strangers` are registered addresses at which
    nobody said which node it is.
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
        """What a node told of itself."""
        answer = self.answers.get(node_id)
        return None if answer is None else answer.report

    def peer(self, node_id: str) -> PeerReport | None:
        """A node as the leader sees it."""
        peers = () if self.leader is None else self.leader.peers
        return next((peer for peer in peers if peer.node_id == node_id), None)


def group_views(survey: Survey) -> list[GroupView]:
    """Return every broker group that a name server or a node knows of, by name."""
    names = {name for one in survey.name_servers for name in one.groups or {}}
    names |= {report.group for answer in survey.nodes.values() if (report := _report(answer)) is not None}
    return [_view(name, survey) for name in sorted(names)]


def _view(name: str, survey: Survey) -> GroupView:
    reports: list[NodeReport] = []
    answers: dict[str, NodeAnswer] = {}
    addresses: dict[str, str] = {}
    for address, answer in survey.nodes.items():
        report = _report(answer)
        if report is not None and report.group == name and isinstance(answer, NodeAnswer):
            reports.append(report)
            answers[report.node_id], addresses[report.node_id] = answer, address
    reports.sort(key=_progress, reverse=True)
    leader = next((report for report in reports if report.leads), None)
    source = leader or (reports[0] if reports else None)
    for report in (source, *reports):
        if report is not None:
            addresses = {**answers[report.node_id].addresses, **addresses}
    listed = {
        address
        for one in survey.name_servers
        if one.groups is not None and name in one.groups
        for address in one.groups[name].broker_addrs.values()
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


def _report(answer: NodeAnswer | str) -> NodeReport | None:
    return answer.report if isinstance(answer, NodeAnswer) else None


def _progress(report: NodeReport) -> tuple[int, int]:
    return report.term, report.commit_index
