"""Requests about settings: operators set live keys (25), and ask a node for its configuration (26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dledger.errors import LogError
from dledger_broker.errors import ConfigError
from dledger_broker.features.settings.properties import asked_settings, told_configuration
from dledger_broker.features.settings.table import SETTINGS, PutSettings, SettingTable
from dledger_broker.features.topics.system_topics import auto_create_example
from dledger_broker.kernel import rights
from dledger_broker.kernel.announcements import Announcements
from dledger_broker.kernel.audit import SubjectState
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig, with_live_values
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.registration import DataVersion

_OF_EXAMPLE: Final = frozenset({"auto_create_topic", "default_topic_queues"})
"""Keys that decide whether the example topic for automatic creation exists, and how many queues it has."""
LIVE_FIELD: Final = "dledgerLive"
"""Ext field of the answer to 26: the group's settings, as JSON of texts by our keys."""


class SettingRequests(Part):
    """Handler of settings. The leader sets them; each node answers queries for itself."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: LeadershipView,
        live: LiveConfig,
        announcements: Announcements,
        requests: Requests,
    ) -> None:
        self._machine = machine
        self._group = group
        self._live = live
        self._announcements = announcements
        self._requests = requests
        machine.on_state(self._follow)

    def _follow(self, state: BrokerState) -> None:
        self._live.follow(state.table(SETTINGS))

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: Route(self.put, Needs.LEADER, CHANGES),
            RequestCode.GET_BROKER_CONFIG: Route(
                self.tell, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.GET),)
            ),
        }

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        return {RequestCode.UPDATE_BROKER_CONFIG: lambda _: dict(self._machine.state.table(SETTINGS).values)}

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge("settings", "Live keys of the configuration that are set for the group", self._count),
            Gauge(
                "settings_refused",
                "Live keys set for the group that do not fit this node's own configuration",
                self._count_refused,
            ),
        )

    def _count(self) -> int:
        return len(self._live.is_set)

    def _count_refused(self) -> int:
        return len(self._live.refused)

    @property
    def _table(self) -> SettingTable:
        return self._machine.state.table(SETTINGS)

    def put(self, request: Request) -> None:
        """Set live keys of the group, either all named keys or none (25). An empty value removes a setting."""
        settings = asked_settings(request.body)
        try:
            with_live_values(self._live.own, {key: text for key, text in settings.items() if text})
        except ConfigError as error:
            raise InvalidParameter(str(error)) from error
        names_example = not _OF_EXAMPLE.isdisjoint(settings)
        self._machine.stage_command(PutSettings(settings), partial(self._applied, request, names_example))

    def _applied(self, request: Request, names_example: bool, error: LogError | None) -> None:
        """Bring the example topic in line with the settings, because clients fetch its route before sending to a new
        topic.

        An existing example topic is unchanged unless the request names one of its keys. Nodes' own files may differ.
        Otherwise the topic would follow the present leader's file when an operator sets another key.
        """
        if error is not None:
            self._requests.fail(request, error)
            return
        example = auto_create_example(self._live.config)
        known = self._machine.state.topics.get(example.topic_name)
        is_fine = known is not None and (known.config == example or not names_example)
        if not self._live.config.auto_create_topic or is_fine:
            request.respond()
        else:
            new = (example.topic_name,) if known is None else ()
            self._machine.proposals.put_topic(example, partial(self._answer, request, new))

    def _answer(self, request: Request, new: Sequence[str], error: LogError | None) -> None:
        if error is None:
            self._announcements.answer(request, new)
        else:
            self._requests.fail(request, error)

    def tell(self, request: Request) -> None:
        """Answer with the configuration in effect on this node (26)."""
        table = self._table
        version = msgspec.json.encode(DataVersion(counter=table.changes)).decode()
        ext = {"version": version, LIVE_FIELD: msgspec.json.encode(table.values).decode()}
        request.respond(ext=ext, body=told_configuration(self._live.config, leads=self._group.ready))
