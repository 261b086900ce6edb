"""Requests about assignments: the queues of a client (400), and the mode in which a group consumes a topic (401, 402).

Request 400 is always answered within the client's time-out. Java's client never repeats the request if the first fails
or gets no answer; it then shares the queues with the other members by itself. An empty answer lets the client continue
with the queues that it has. It is sent while this node knows no leader, or not the queues of other broker groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from dledger.errors import LogError
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.topic_routes import TopicRoutes
from dledger_broker.features.assignments.table import REQUEST_MODES, Mode, ModeKey, PutRequestMode, RequestModeTable
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Effect, Needs, Route
from dledger_remoting.assignments import (
    AssignmentsBody,
    QueryAssignmentBody,
    QueueAssignment,
    RequestMode,
    RequestModeBody,
    RequestModesBody,
)
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, MessageIllegal, NoPermission
from dledger_remoting.heartbeat import MessageModel
from dledger_remoting.route import QueueData, TopicRouteData
from dledger_remoting.shares import average_share, circle_share
from dledger_remoting.topics import (
    MessageQueue,
    TopicConfig,
    is_readable,
    is_retry_topic,
    require_readable,
    validate_group,
    validate_topic,
)

Strategy: TypeAlias = Callable[[str, Collection[str], Collection[MessageQueue]], Sequence[MessageQueue]]
"""Function from (client id, all client ids, all queues) to the client's queues."""

ANY_QUEUE: Final = -1
"""Queue id that means all queues of a topic in a broker group."""
STRATEGIES: Final[Mapping[str, Strategy]] = {"AVG": average_share, "AVG_BY_CIRCLE": circle_share}
"""Strategies by the names that clients use. RocketMQ's broker has the same two."""
DEFAULT_STRATEGY: Final = "AVG"


def readable_queues(
    topic: str, broker_group: str, own: TopicConfig | None, others: Iterable[QueueData]
) -> list[MessageQueue]:
    """Return the readable queues of a topic. `own` is this broker group's topic, `others` are from name servers."""
    places = [(broker_group, own.read_queue_nums, own.perm)] if own is not None else []
    places += [
        (place.broker_name, place.read_queue_nums, place.perm) for place in others if place.broker_name != broker_group
    ]
    return [
        MessageQueue(name, queue_id, topic)
        for name, count, perm in places
        if is_readable(perm)
        for queue_id in range(count)
    ]


def share(
    strategy: Strategy, mode: Mode, client_id: str, client_ids: Collection[str], queues: Sequence[MessageQueue]
) -> list[MessageQueue]:
    """Return the queues of a member of a consumer group.

    In mode POP a member also pops the queues of the `pop_share_queues` members after it. So other members take over the
    queues of a member that hangs. They get the messages that it has popped once their invisible time has passed. With
    more members than queues, each member has one queue.
    """
    members = sorted(set(client_ids))
    if not mode.pops:
        return list(strategy(client_id, members, queues))
    if mode.pop_share_queues <= 0 or mode.pop_share_queues + 1 >= len(members):
        return sorted({MessageQueue(queue.broker_name, ANY_QUEUE, queue.topic) for queue in queues})
    if client_id not in members:
        return []
    index = members.index(client_id)
    if len(members) > len(queues):
        return [sorted(queues)[index % len(queues)]] if queues else []
    turn = [members[(index + behind) % len(members)] for behind in range(mode.pop_share_queues + 1)]
    return sorted({queue for member in turn for queue in strategy(member, members, queues)})


MAX_CLIENT_ID_CHARS: Final = 1_024
UNANSWERED_S: Final = 2.5
"""Time limit in seconds for the leader's answer to 400. Java's client gives up after 3 s."""


def _topic_of_query(request: Request) -> tuple[str, ...]:
    return (decode_body(QueryAssignmentBody, request.body, "query assignment").topic,)


def _group_of_query(request: Request) -> tuple[str, ...]:
    return (decode_body(QueryAssignmentBody, request.body, "query assignment").consumer_group,)


def _topic_of_mode(request: Request) -> tuple[str, ...]:
    return (decode_body(RequestModeBody, request.body, "request mode").topic,)


def _group_of_mode(request: Request) -> tuple[str, ...]:
    return (decode_body(RequestModeBody, request.body, "request mode").consumer_group,)


_ASSIGNMENT: Final = (
    rights.groups_in("consumerGroup in the body", _group_of_query, Action.SUB),
    rights.topics_in("topic in the body", _topic_of_query, Action.SUB),
)
_MODE: Final = (
    rights.groups_in("consumerGroup in the body", _group_of_mode, Action.UPDATE),
    rights.topics_in("topic in the body", _topic_of_mode, Action.UPDATE),
)


class AssignmentRequests(Part):
    """Part that assigns queues on the leader, which knows the members on all nodes, and manages request modes."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: LeadershipView,
        live: LiveConfig,
        counters: BrokerCounters,
        requests: Requests,
        gossip: Gossip,
        routes: TopicRoutes,
    ) -> None:
        self._machine = machine
        self._group = group
        self._live = live
        self._counters = counters
        self._requests = requests
        self._gossip = gossip
        self._topic_routes = routes
        self._under_way: Counter[ModeKey] = Counter()
        """Number of commands in flight for each key."""

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.QUERY_ASSIGNMENT: Route(self.query, Needs.NOTHING, ASKED, rights=_ASSIGNMENT),
            RequestCode.SET_MESSAGE_REQUEST_MODE: Route(self.put_mode, Needs.LEADER, CHANGES, rights=_MODE),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: Route(
                self.modes, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.cluster(Action.GET, Action.LIST),)
            ),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("request_modes", "Pairs of a topic and a group whose request mode is set", self._count),)

    def _count(self) -> int:
        return len(self._table)

    @property
    def _table(self) -> RequestModeTable:
        return self._machine.state.table(REQUEST_MODES)

    # ---------------------------------------------------------------- assignments

    def query(self, request: Request) -> None:
        """Handle 400: answer with the queues of a topic that a client consumes, and with its mode."""
        body = decode_body(QueryAssignmentBody, request.body, "query assignment")
        validate_topic(body.topic)
        validate_group(body.consumer_group)
        require_readable(body.topic)
        if not body.client_id.strip() or len(body.client_id) > MAX_CLIENT_ID_CHARS:
            raise InvalidParameter(
                f"query assignment body: clientId has {len(body.client_id)} characters, expected 1 to "
                f"{MAX_CLIENT_ID_CHARS}"
            )
        if not self._group.ready:
            if self._group.leader_id is None:
                _answer_empty(request)
            else:
                self._requests.pass_on(request)
        elif self._machine.topic(body.topic) is None:
            _answer_empty(request)
        else:
            strategy = self._strategy_of(body)
            self._topic_routes.find(body.topic, partial(self._on_route, request, body, strategy))

    def _strategy_of(self, body: QueryAssignmentBody) -> Strategy:
        """Return the strategy by which members share the queues. Raises `InvalidParameter` for an unknown strategy."""
        name = body.strategy_name or DEFAULT_STRATEGY
        mode = self._mode_of(body.topic, body.consumer_group)
        if body.message_model is MessageModel.BROADCASTING or (mode.pops and mode.pop_share_queues <= 0):
            name = DEFAULT_STRATEGY  # every member gets all queues, so the strategy does not matter
        if name not in STRATEGIES:
            raise InvalidParameter(
                f"strategy {name[:64]!r} is not one of {', '.join(STRATEGIES)}: let the clients share by themselves"
            )
        return STRATEGIES[name]

    def _mode_of(self, topic: str, group: str) -> Mode:
        """Return how a group consumes a topic: the mode that was set, else `default_request_mode`.

        Retry topics are pulled by default, because they have the messages that pulling consumers have sent back.
        """
        mode = self._table.get(ModeKey(topic, group))
        if mode is not None:
            return mode
        return Mode(self._live.config.default_request_mode == "pop" and not is_retry_topic(topic))

    def _on_route(
        self, request: Request, body: QueryAssignmentBody, strategy: Strategy, route: TopicRouteData | None
    ) -> None:
        if route is None:
            _answer_empty(request)
        else:
            self._gossip.after_all_tables(partial(self._answer, request, body, strategy, route))

    def _answer(self, request: Request, body: QueryAssignmentBody, strategy: Strategy, route: TopicRouteData) -> None:
        topic = self._machine.topic(body.topic)
        if topic is None or not self._group.ready:
            _answer_empty(request)
            return
        queues = readable_queues(body.topic, self._live.config.broker_group, topic.config, route.queue_datas)
        mode = self._mode_of(body.topic, body.consumer_group)
        if body.message_model is not MessageModel.BROADCASTING:
            members = self._gossip.merged.member_ids(body.consumer_group)
            if not members:
                _answer_empty(request)
                return
            queues = share(strategy, mode, body.client_id, members, queues)
        how = RequestMode.POP if mode.pops else RequestMode.PULL
        answer = encode_body(AssignmentsBody([QueueAssignment(queue, how) for queue in queues]))
        if len(answer) > self._requests.max_body_bytes:
            request.fail(MessageIllegal(f"{len(queues)} queues fit no frame: let the clients share by themselves"))
        else:
            request.respond(body=answer)

    # ---------------------------------------------------------------- modes

    def put_mode(self, request: Request) -> None:
        """Handle 401: set the mode in which a group consumes a topic. Members learn of the mode with their next 400."""
        body = decode_body(RequestModeBody, request.body, "request mode")
        validate_topic(body.topic)
        validate_group(body.consumer_group)
        if is_retry_topic(body.topic):
            raise NoPermission("retry topic is not allowed to set mode")
        require_readable(body.topic)
        key = ModeKey(body.topic, body.consumer_group)
        self._require_room(key)
        self._under_way[key] += 1
        command = PutRequestMode(*key, body.mode is RequestMode.POP, body.pop_share_queue_num)
        self._machine.stage_command(command, partial(self._put, request, key))

    def _require_room(self, key: ModeKey) -> None:
        """Raise `InvalidParameter` if another request mode would exceed the limit."""
        table, limit = self._table, self._live.config.max_request_modes
        new = {other for other in self._under_way if table.get(other) is None} - {key}
        if table.get(key) is None and len(table) + len(new) >= limit:
            self._counters.max_request_modes += 1
            raise InvalidParameter(
                f"{limit} topics of groups have a request mode, which is the limit max_request_modes: delete groups "
                "or topics that nobody uses, or raise it"
            )

    def _put(self, request: Request, key: ModeKey, error: LogError | None) -> None:
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def modes(self, request: Request) -> None:
        """Handle 402: answer with all modes that were set."""
        found: dict[str, dict[str, RequestModeBody]] = {}
        for (topic, group), mode in sorted(self._table):
            how = RequestMode.POP if mode.pops else RequestMode.PULL
            found.setdefault(topic, {})[group] = RequestModeBody(topic, group, how, mode.pop_share_queues)
        self._requests.respond(request, encode_body(RequestModesBody(found)))


def _answer_empty(request: Request) -> None:
    """Send an empty answer, which lets the client continue with the queues that it has."""
    request.respond(body=encode_body(AssignmentsBody()))


ASKED: Final = Effect(changes=False, answer_timeout_s=UNANSWERED_S, unanswered=_answer_empty)
