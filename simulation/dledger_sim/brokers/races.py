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
"""By so much one commit is sent earlier than the next, at least, and so arrives first where both go straight."""
LONGEST_LEADS_S: Final = (0.01, 0.1, 0.5, 2.0)
"""And by up to so much more."""
MORE_BEHIND: Final = (0, 0, 1, 3)
"""So many commits follow the first one over its own connection, before the one through another node."""
MOST_STEPS: Final = 3
ASK_SHARE: Final = 0.2
BY_PULL_SHARE: Final = 0.2


class Racer(Client):
    """What a consumer does whose commit gets no answer: it commits a higher offset through another node.

    The first commit is still under way then.  Offsets only grow, so that none may ever undo a later one.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._group_name = f"group-{number}"
        self._topic = self.random.choice(sorted(workload.lasting))
        self._attempted = dict.fromkeys(range(workload.settings.queues), 0)
        self._acknowledged = dict.fromkeys(range(workload.settings.queues), -1)
        self._channels: dict[str, SimConnection] = {}
        self._known = False
        self._under_way = 0

    def act(self) -> None:
        """Have the group known, commit twice, or ask what is committed."""
        queue_id = self.random.choice(sorted(self._attempted))
        if not self._known:
            self._pull_first(queue_id)
        elif self.random.random() < ASK_SHARE:
            self._ask(queue_id)
        else:
            self._race(queue_id)

    def _key(self, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": self._group_name, "topic": self._topic, "queueId": str(queue_id)}

    def _pull_first(self, queue_id: int) -> None:
        def done(answer: Answer | None) -> None:
            self._known = answer is not None and answer.code != ResponseCode.SERVICE_NOT_AVAILABLE
            self.pause()

        if not self.call(RequestCode.PULL_MESSAGE, self._key(queue_id) | pull_fields(0, 1), done):
            self.pause()

    def _ask(self, queue_id: int) -> None:
        floor = self._acknowledged[queue_id]

        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.offset((self._group_name, self._topic, queue_id), answer)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.workload.offset_read(answer, floor, self._key(queue_id))
            self.pause()

        ext = self._key(queue_id) | {"setZeroIfNotFound": "false"}
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    def _race(self, queue_id: int) -> None:
        random = self.random
        near, far = random.sample(self.workload.group.settings.names, 2)
        after = self.workload.group.scheduler.after
        by_pull = random.random() < BY_PULL_SHARE
        behind = random.choice(MORE_BEHIND)
        self._under_way = 2 + behind
        self._commit(far, queue_id, by_pull=by_pull)
        delay_s = 0.0
        for _ in range(behind):
            delay_s += LEAD_S + random.random() * random.choice(LONGEST_LEADS_S)
            after(delay_s, partial(self._commit, far, queue_id))
        delay_s += LEAD_S + random.random() * random.choice(LONGEST_LEADS_S)
        after(delay_s, partial(self._commit, near, queue_id))

    def _commit(self, name: str, queue_id: int, *, by_pull: bool = False) -> None:
        """Commit an offset above all before it through a node, if that can be reached."""
        workload, random = self.workload, self.random
        if not workload.active:
            return  # the group is being judged
        offset = self._attempted[queue_id] = self._attempted[queue_id] + random.randint(1, MOST_STEPS)
        oneway = not by_pull and random.random() < workload.settings.oneway_share

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS and not by_pull:
                self._acknowledged[queue_id] = max(self._acknowledged[queue_id], offset)
                workload.truth.commit_acknowledged((self._group_name, self._topic, queue_id), offset)
                workload.counts["commit"] += 1
            self._settled()

        connection = self._channel(name)
        if connection is None:
            self._settled()
            return
        if by_pull:
            ext = self._key(queue_id) | pull_fields(0, 1, commits=True) | {"commitOffset": str(offset)}
        else:
            ext = self._key(queue_id) | {"commitOffset": str(offset)}
        code = RequestCode.PULL_MESSAGE if by_pull else RequestCode.UPDATE_CONSUMER_OFFSET
        command = RemotingCommand(code, flag=FLAG_ONEWAY if oneway else 0, ext=ext)
        connection.call(command, workload.settings.timeout_s, done)

    def _settled(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self.pause()

    def _channel(self, name: str) -> SimConnection | None:
        """A connection to a node; None if it cannot be reached."""
        group, life = self.workload.group, self.workload.group.nodes[name].life
        known = self._channels.get(name)
        if known is not None and known.is_usable:
            return known
        if life is None or life.stopping or name in group.unreachable | group.leaving.keys():
            return None
        port = FIRST_CLIENT_PORT + 100 * self.number + next(self._connections) % 100
        self._channels[name] = SimConnection(group, life, self.random, HostAddress(CLIENT_HOST, port), port)
        return self._channels[name]
