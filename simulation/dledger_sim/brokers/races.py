"""Clients that commit offsets through two nodes at once."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.hosts import HostAddress
from dledger_sim.brokers.clients import CLIENT_HOST, FIRST_CLIENT_PORT, Client, pull_fields
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.workload import Workload

LEAD_S: Final = 0.005
"""Minimum time between two commits, in seconds. Thus the earlier commit arrives first if both take the direct way."""
LONGEST_LEADS_S: Final = (0.01, 0.1, 0.5, 2.0)
"""Maximum additional time between two commits, in seconds."""
MORE_BEHIND: Final = (0, 0, 1, 3)
"""Number of commits that follow the first on its connection, before the commit through another node."""
MOST_STEPS: Final = 3
ASK_SHARE: Final = 0.2
BY_PULL_SHARE: Final = 0.2


class Racer(Client):
    """Consumer whose commit gets no answer, and that commits a higher offset through another node.

    The first commit is still under way then. Offsets only grow: no commit may ever undo a later one.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._group_name = f"group-{number}"
        self._topic = self.random.choice(sorted(workload.lasting))
        self._attempted_offsets = dict.fromkeys(range(workload.settings.queues), 0)
        self._acknowledged_offsets = dict.fromkeys(range(workload.settings.queues), -1)
        self._channels: dict[str, SimConnection] = {}
        self._is_group_known = False
        self._commits_left = 0

    def act(self) -> None:
        """Make the group known, commit twice, or ask for the committed offset."""
        queue_id = self.random.choice(sorted(self._attempted_offsets))
        if not self._is_group_known:
            self._pull_first(queue_id)
        elif self.random.random() < ASK_SHARE:
            self._ask_offset(queue_id)
        else:
            self._race(queue_id)

    def _make_fields(self, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": self._group_name, "topic": self._topic, "queueId": str(queue_id)}

    def _pull_first(self, queue_id: int) -> None:
        def done(answer: Answer | None) -> None:
            self._is_group_known = answer is not None and answer.code != ResponseCode.SERVICE_NOT_AVAILABLE
            self.pause()

        if not self.call(RequestCode.PULL_MESSAGE, self._make_fields(queue_id) | pull_fields(0, 1), done):
            self.pause()

    def _ask_offset(self, queue_id: int) -> None:
        floor = self._acknowledged_offsets[queue_id]

        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.offset((self._group_name, self._topic, queue_id), answer)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.workload.offset_read(answer, floor, self._make_fields(queue_id))
            self.pause()

        ext = self._make_fields(queue_id) | {"setZeroIfNotFound": "false"}
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    def _race(self, queue_id: int) -> None:
        random = self.random
        near, far = random.sample(self.workload.group.settings.names, 2)
        after = self.workload.group.scheduler.after
        by_pull = random.random() < BY_PULL_SHARE
        behind = random.choice(MORE_BEHIND)
        self._commits_left = 2 + behind
        self._commit(far, queue_id, by_pull=by_pull)
        delay_s = 0.0
        for _ in range(behind):
            delay_s += LEAD_S + random.random() * random.choice(LONGEST_LEADS_S)
            after(delay_s, partial(self._commit, far, queue_id))
        delay_s += LEAD_S + random.random() * random.choice(LONGEST_LEADS_S)
        after(delay_s, partial(self._commit, near, queue_id))

    def _commit(self, name: str, queue_id: int, *, by_pull: bool = False) -> None:
        """Commit an offset above all earlier ones through a node, if the node can be reached."""
        workload, random = self.workload, self.random
        if not workload.active:
            return  # the group is being judged
        offset = self._attempted_offsets[queue_id] = self._attempted_offsets[queue_id] + random.randint(1, MOST_STEPS)
        oneway = not by_pull and random.random() < workload.settings.oneway_share

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS and not by_pull:
                self._acknowledged_offsets[queue_id] = max(self._acknowledged_offsets[queue_id], offset)
                workload.truth.commit_acknowledged((self._group_name, self._topic, queue_id), offset)
                workload.counts["commit"] += 1
            self._finish_commit()

        connection = self._get_channel(name)
        if connection is None:
            self._finish_commit()
            return
        if by_pull:
            ext = self._make_fields(queue_id) | pull_fields(0, 1, commits=True) | {"commitOffset": str(offset)}
        else:
            ext = self._make_fields(queue_id) | {"commitOffset": str(offset)}
        code = RequestCode.PULL_MESSAGE if by_pull else RequestCode.UPDATE_CONSUMER_OFFSET
        command = RemotingCommand(code, flag=FLAG_ONEWAY if oneway else 0, ext=ext)
        connection.call(command, workload.settings.timeout_s, done)

    def _finish_commit(self) -> None:
        self._commits_left -= 1
        if not self._commits_left:
            self.pause()

    def _get_channel(self, name: str) -> SimConnection | None:
        """Return a connection to a node, or None if it cannot be reached."""
        group, life = self.workload.group, self.workload.group.nodes[name].life
        known = self._channels.get(name)
        if known is not None and known.is_usable:
            return known
        if life is None or life.stopping or name in group.unreachable | group.leaving.keys():
            return None
        port = FIRST_CLIENT_PORT + 100 * self.number + next(self._connections) % 100
        self._channels[name] = SimConnection(group, life, self.random, HostAddress(CLIENT_HOST, port), port)
        return self._channels[name]
