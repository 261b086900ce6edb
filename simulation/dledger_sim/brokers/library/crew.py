"""Members of consumer groups that come and go, and administrators who reset their groups and make topics again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.resets import AT_END
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.library.judge import Deliveries
from dledger_sim.brokers.library.members import Habits, Handling, Member, Ordered, Taking
from dledger_sim.brokers.library.process import Process, World
from dledger_sim.brokers.workload import Workload

REMADE: Final = "remade"
"""Topic that is deleted and made again while it is consumed."""
REMAKE_HASTE: Final = 40.0
"""Factor for the pause between two changes of a topic, relative to the usual pause."""
SEND_AGAIN_S: Final = 0.05
VISIT_SHARE: Final = 0.5
"""Share of the changes in which a member comes for `VISIT_S` only. That may be too short to begin."""
VISIT_S: Final = (0.1, 3.0)
MOVE_WITHIN_S: Final = 0.4
"""Time within which a group is reset because its members change, in seconds."""
TROUBLE_SHARE: Final = 0.2
"""Share of the changes that stop a member or cut it off, and leave the set of members as it is."""
MOST_TROUBLE_S: Final = 8.0
"""Maximum duration of such a stop, in seconds. A stopped handler is done before the lock of its queue ends."""
KILL_SHARE: Final = 0.5
"""Share of the members that end by being killed."""


class Crew:
    """Members of one group: up to `most` at a time, of `kinds`."""

    def __init__(
        self,
        world: World,
        group: str,
        kinds: tuple[type[Member], ...],
        deliveries: Deliveries,
        habits: Habits,
        most: int,
        counts: Counter[str],
    ) -> None:
        self._world = world
        self._group = group
        self._kinds = kinds
        self._deliveries = deliveries
        self._habits = habits
        self._max_members = most
        self._counts = counts
        self._random = Random(f"{world.random.random()} {group}")
        self._number = 0
        self._is_calm = False
        self.on_change: list[Callable[[str], None]] = []
        """Callbacks with the group, shortly after its members have changed.

        The members may not know of the change yet.
        """
        self.members: list[Member] = []
        self.leaving: list[Member] = []

    def begin(self, mean_s: float) -> None:
        """Let members come and go, with a change every `mean_s` seconds on average."""
        for _ in range(self._random.randint(1, self._max_members)):
            self._join()
        self._schedule_change(mean_s)

    def _schedule_change(self, mean_s: float) -> None:
        self._world.group.scheduler.after(self._random.expovariate(1.0) * mean_s, partial(self._change, mean_s))

    def _change(self, mean_s: float) -> None:
        if self._is_calm:
            return
        if self.members and self._random.random() < TROUBLE_SHARE:
            self._disturb(self._random.choice(self.members).process)
        elif self._random.random() < VISIT_SHARE:
            self._world.group.scheduler.after(self._random.uniform(*VISIT_S), partial(self._end, self._join()))
        elif not self.members or (len(self.members) < self._max_members and self._random.random() < 0.5):
            self._join()
        else:
            self._end(self._random.choice(self.members))
        for callback in self.on_change:
            self._world.group.scheduler.after(self._random.random() * MOVE_WITHIN_S, partial(callback, self._group))
        self._schedule_change(mean_s)

    def _end(self, member: Member) -> None:
        """Make a member leave, or kill it."""
        if member not in self.members or self._is_calm:
            return
        self.members.remove(member)
        if self._random.random() < KILL_SHARE:
            member.kill()
            self._counts["member killed"] += 1
        else:
            member.leave()
            self.leaving.append(member)
            self._counts["member left"] += 1

    def _disturb(self, process: Process) -> None:
        """Stop a process (SIGSTOP) for a while, or cut it off from all servers."""
        until = self._world.group.scheduler.now + self._random.uniform(0.1, MOST_TROUBLE_S)
        self._world.healed_at = max(self._world.healed_at, until)
        if self._random.random() < 0.5:
            process.loop.stop(until)
            self._counts["member stopped"] += 1
        else:
            process.cut_off(until)
            self._counts["member cut off"] += 1

    def _join(self) -> Member:
        self._number += 1
        kind = self._random.choice(self._kinds)
        process = Process(self._world, f"{self._group}-{self._number}")
        random = Random(f"{self._random.random()} member")
        topics = self._world.groups[self._group]
        member = kind(process, self._group, topics, self._deliveries, random, self._habits, lambda: self._is_calm)
        self.members.append(member)
        member.start()
        self._counts["member joined"] += 1
        return member

    def calm_down(self) -> None:
        """End all changes of members, and all slow or failing handlers. Make sure that there is a member."""
        self._is_calm = True
        if not self.members:
            self._join()

    def close(self) -> None:
        """Make all members leave."""
        for member in self.members:
            member.leave()
        self.leaving += self.members
        self.members = []

    @property
    def still_there(self) -> list[str]:
        """Names of the members that are leaving and have not left."""
        return [member.process.name for member in self.leaving if not member.is_closed]


class LastSender(Client):
    """Client that sends a message to each queue of the lasting topics, when group and consumers are calm.

    Faults may have kept the group down for so long that a topic was never made. It gets no message.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        made = workload.lasting & workload.truth.topics.keys()
        self._queues_left = [
            (topic, queue_id) for topic in sorted(made) for queue_id in range(workload.settings.queues)
        ]

    @property
    def is_done(self) -> bool:
        """True if all messages are stored."""
        return not self._queues_left

    def act(self) -> None:
        """Send to the next queue, and repeat this until the send is acknowledged."""
        workload = self.workload
        if not self._queues_left:
            return
        topic, queue_id = self._queues_left[-1]
        operation = workload.next_operation()
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)

        def done(answer: Answer | None) -> None:
            workload.sent([operation], queue_id, answer)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._queues_left.pop()
            if self._queues_left:
                workload.group.scheduler.after(SEND_AGAIN_S, self.act)

        if not self.call(code, ext, done, body=body):
            workload.not_sent([operation])
            workload.group.scheduler.after(SEND_AGAIN_S, self.act)


KINDS: Final[dict[str, tuple[type[Member], ...]]] = {"handling": (Handling, Taking), "ordered": (Ordered,)}
"""Consumer groups, with the ways in which their members take messages."""


class Mover(Client):
    """Administrator who resets the groups of members: back, ahead, to the end.

    `patience` is the factor for the pause in between.
    """

    def __init__(self, workload: Workload, number: int, patience: float) -> None:
        super().__init__(workload, number)
        self._patience = patience

    def act(self) -> None:
        """Reset a group."""
        if not self._reset(self.random.choice(sorted(KINDS)), lambda: self.pause(haste=self._patience)):
            self.pause()

    def strike(self, group: str) -> None:
        """Reset a group while its members change."""
        if self.workload.active:
            self._reset(group, _ignore_end)

    def _reset(self, group: str, then: Callable[[], None]) -> bool:
        """Reset one queue, or all queues of a topic. Return False if nothing was sent."""
        workload, random = self.workload, self.random
        topic = random.choice(sorted(workload.lasting))
        queue_id = random.randrange(workload.settings.queues)
        queue = workload.truth.topics[topic].kept(queue_id) if topic in workload.truth.topics else []
        fields = {"group": group, "topic": topic, "isForce": "true", "timestamp": str(AT_END)}
        if queue and random.random() < 0.5:
            fields |= {"queueId": str(queue_id), "offset": str(random.choice(queue).offset)}
        elif queue and random.random() < 0.8:
            fields["timestamp"] = str(random.choice(queue).at_ms)

        def done(answer: Answer | None) -> None:
            workload.counts["group moved"] += answer is not None and answer.code == ResponseCode.SUCCESS
            then()

        return self.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields, done)


def _ignore_end() -> None:
    """Ignore the end of a reset."""


class Remaker(Client):
    """Administrator who makes a topic, deletes it, and makes it again."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._topic_exists = False
        workload.passing.append(REMADE)

    def act(self) -> None:
        """Make or delete the topic, and repeat this until it is acknowledged."""
        makes = not self._topic_exists
        code = RequestCode.UPDATE_AND_CREATE_TOPIC if makes else RequestCode.DELETE_TOPIC_IN_BROKER

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._topic_exists = makes
                self.workload.counts["topic remade"] += makes
                self.pause(haste=REMAKE_HASTE if makes else REMAKE_HASTE / 10)
            else:
                self.pause()

        if not self.call(code, self.workload.topic_fields(REMADE), done):
            self.pause()
