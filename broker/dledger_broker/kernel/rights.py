"""Rights: the actions that a request code needs, and on which topics, groups or cluster.

A route names its rights, and a request needs all of them. A right is on resources that the request names, in an ext
field or in its body. A right of `later` is on a topic that the handler finds and then checks by itself. A route that
names no rights is for administrators, so that nobody opens a code by forgetting its rights.

The topics of a consumer group, `%RETRY%group`, `%RETRY%group+topic` and `%DLQ%group`, count as their group. An account
that may consume as the group may have a message redelivered, and nobody else may read what the group could not handle.
Sends to a group's dead letters need a right on the topic itself: a broker makes dead letters, and a consumer has no
need to.
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
    """Action on a resource, in RocketMQ's words. The last two are ours.

    `LOG` is reading the log itself, with everything in it. `SPEAK` is sending requests for other accounts, whose
    signatures a proxy passes on.
    """

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    LOG = "Log"
    SPEAK = "Speak"


class ResourceKind(StrEnum):
    """Kind of resource that rights are on."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Demand(NamedTuple):
    """A right on one resource. Any one of the actions is enough. A cluster has no name here, because the judge knows
    it.
    """

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
        elif is_dead_letter_topic(self.name) and Action.PUB not in self.actions:
            group = self.name.removeprefix(DLQ_PREFIX)
        else:
            return self
        actions = tuple(Action.SUB if action is Action.PUB else action for action in self.actions)
        return Demand(actions, ResourceKind.GROUP, group)


Names: TypeAlias = Callable[[Request], Iterable[str]]
"""Returns the resources that a request names. Raises `RemotingError` if it cannot be read."""


class Right(NamedTuple):
    """Right that a route needs: one of the actions on every resource that `names` finds. `description` describes these
    resources.

    Without `names`, the handler finds the resources and checks the right. With `admin`, only an administrator's account
    is enough.
    """

    actions: tuple[Action, ...]
    kind: ResourceKind
    description: str
    names: Names | None = None
    admin: bool = False

    def demands(self, request: Request) -> list[Demand]:
        """Return the demands to check before the request is handled."""
        return [] if self.names is None else [Demand(self.actions, self.kind, name) for name in self.names(request)]

    def __str__(self) -> str:
        """Return the text for lists of all rights."""
        if self.admin:
            return "administrators"
        return f"{' or '.join(self.actions)} on {self.kind}: {self.description}"


Rights: TypeAlias = tuple[Right, ...]

ADMIN: Final[Rights] = (Right((), ResourceKind.CLUSTER, "", admin=True),)
"""Rights of routes for administrators."""
ANY_ACCOUNT: Final[Rights] = ()
"""Rights of routes for every account."""


def _topic_sent_to(request: Request) -> tuple[str, ...]:
    return (SendMessageHeader.decode(request.ext).topic,)


SENDS: Final[Rights] = (Right((Action.PUB,), ResourceKind.TOPIC, "topic, or b", _topic_sent_to),)
"""Right to send. A topic that a send creates needs no other right, as with RocketMQ."""


def topic(field: str, *actions: Action, optional: bool = False) -> Right:
    """Return a right on the topic in an ext field. With `optional`, an empty or missing field names no topic."""
    return _named(ResourceKind.TOPIC, field, actions, optional=optional)


def group(field: str, *actions: Action, optional: bool = False) -> Right:
    """Return a right on the consumer group in an ext field. With `optional`, an empty or missing field names no
    group.
    """
    return _named(ResourceKind.GROUP, field, actions, optional=optional)


def topics_in(description: str, names: Names, *actions: Action) -> Right:
    """Return a right on topics that a body names."""
    return Right(actions, ResourceKind.TOPIC, description, names)


def groups_in(description: str, names: Names, *actions: Action) -> Right:
    """Return a right on consumer groups that a body names."""
    return Right(actions, ResourceKind.GROUP, description, names)


def cluster(*actions: Action) -> Right:
    """Return a right on the cluster."""
    return Right(actions, ResourceKind.CLUSTER, "its own", _one_without_name)


def later(description: str, *actions: Action) -> Right:
    """Return a right on a topic that the handler finds."""
    return Right(actions, ResourceKind.TOPIC, description)


def _named(kind: ResourceKind, field: str, actions: tuple[Action, ...], *, optional: bool) -> Right:
    description = f"{field}, if named" if optional else field
    return Right(actions, kind, description, partial(_field, field, optional))


def _field(field: str, optional: bool, request: Request) -> tuple[str, ...]:
    name = request.ext.get(field, "")
    return () if optional and not name else (name,)


def _one_without_name(_request: Request) -> tuple[str, ...]:
    return ("",)
