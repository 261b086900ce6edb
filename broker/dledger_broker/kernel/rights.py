"""Rights: what a request code asks for, and on which topics, groups or cluster.

A route names its rights, and all of them are asked for. A right is on resources that the request names, in an ext field
or in its body, or on what its handler finds later (`LATER`), which then asks for it by itself. A route that names
none is for administrators, so that nobody opens a code by forgetting it.

The topics of a consumer group, `%RETRY%group`, `%RETRY%group+topic` and `%DLQ%group`, count as their group: who may
consume as the group may have a message come again, and nobody else may read what it could not handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.kernel.requests import Request
from dledger_remoting.headers import SendMessageHeader
from dledger_remoting.pop import group_of_retry_topic
from dledger_remoting.topics import DLQ_PREFIX, is_dead_letter_topic, is_retry_topic


class Action(StrEnum):
    """What is done to a resource, in RocketMQ's words. `LOG` is ours: reading the log itself, with all that it has."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    LOG = "Log"


class ResourceKind(StrEnum):
    """What rights are on."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Demand(NamedTuple):
    """A right on one resource; any of the actions will do. A cluster's name is known to who judges."""

    actions: tuple[Action, ...]
    kind: ResourceKind
    name: str = ""

    @property
    def judged(self) -> Demand:
        """The demand with a group in place of the group's own topics."""
        if self.kind is not ResourceKind.TOPIC:
            return self
        if is_retry_topic(self.name):
            group = group_of_retry_topic(self.name)
        elif is_dead_letter_topic(self.name):
            group = self.name.removeprefix(DLQ_PREFIX)
        else:
            return self
        actions = tuple(Action.SUB if action is Action.PUB else action for action in self.actions)
        return Demand(actions, ResourceKind.GROUP, group)


Names: TypeAlias = Callable[[Request], Iterable[str]]
"""The resources that a request names. Raises `RemotingError` if it cannot be read."""


class Right(NamedTuple):
    """What a route asks for: one of the actions on every resource that `names` finds, which `told` says in words.

    No `names`: the handler finds the resources, and asks. `admin`: an administrator's account alone will do.
    """

    actions: tuple[Action, ...]
    kind: ResourceKind
    told: str
    names: Names | None = None
    admin: bool = False

    def demands(self, request: Request) -> list[Demand]:
        """What is asked for before the request is handled."""
        return [] if self.names is None else [Demand(self.actions, self.kind, name) for name in self.names(request)]

    def __str__(self) -> str:
        """For lists of all rights."""
        if self.admin:
            return "administrators"
        return f"{' or '.join(self.actions)} on {self.kind}: {self.told}"


Rights: TypeAlias = tuple[Right, ...]

ADMIN: Final[Rights] = (Right((), ResourceKind.CLUSTER, "", admin=True),)
"""For administrators."""
ANY_ACCOUNT: Final[Rights] = ()
"""For every account."""


def _topic_sent_to(request: Request) -> tuple[str, ...]:
    return (SendMessageHeader.decode(request.ext).topic,)


SENDS: Final[Rights] = (Right((Action.PUB,), ResourceKind.TOPIC, "topic, or b", _topic_sent_to),)
"""For who may send. A topic that a send makes takes no other right, as with RocketMQ."""


def topic(field: str, *actions: Action, optional: bool = False) -> Right:
    """A right on the topic in an ext field. `optional`: none is named by a field that is empty or not there."""
    return _named(ResourceKind.TOPIC, field, actions, optional=optional)


def group(field: str, *actions: Action, optional: bool = False) -> Right:
    """A right on the consumer group in an ext field."""
    return _named(ResourceKind.GROUP, field, actions, optional=optional)


def topics_in(told: str, names: Names, *actions: Action) -> Right:
    """A right on topics that a body names."""
    return Right(actions, ResourceKind.TOPIC, told, names)


def groups_in(told: str, names: Names, *actions: Action) -> Right:
    """A right on consumer groups that a body names."""
    return Right(actions, ResourceKind.GROUP, told, names)


def cluster(*actions: Action) -> Right:
    """A right on the cluster."""
    return Right(actions, ResourceKind.CLUSTER, "its own", _one_without_name)


def later(told: str, *actions: Action) -> Right:
    """A right on a topic that the handler finds."""
    return Right(actions, ResourceKind.TOPIC, told)


def _named(kind: ResourceKind, field: str, actions: tuple[Action, ...], *, optional: bool) -> Right:
    told = f"{field}, if named" if optional else field
    return Right(actions, kind, told, partial(_field, field, optional))


def _field(field: str, optional: bool, request: Request) -> tuple[str, ...]:
    name = request.ext.get(field, "")
    return () if optional and not name else (name,)


def _one_without_name(_request: Request) -> tuple[str, ...]:
    return ("",)
