"""Memory of clients that left while their pops wait, at this node or at the leader. Such a pop takes no message.

Otherwise its messages would stay hidden from the group for their invisible time, and nobody would get them. The node
that a client was connected to knows that the client has gone. If the leader has requests of the client, the node
notifies the leader (20019).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dledger.environment import Environment
from dledger_broker.features.pop.held import HeldPops
from dledger_broker.kernel.requests import Origin, Request, Requests, own_request
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand

KEPT_S: Final = 120.0
"""Time in seconds for which a gone channel is remembered. It is longer than a request of the channel takes."""


class GoneClients:
    """Memory of clients, of this node and of other nodes, that have gone."""

    def __init__(self, env: Environment, requests: Requests, held: HeldPops) -> None:
        self._env = env
        self._requests = requests
        self._held = held
        self._gone_elsewhere: OrderedDict[str, float] = OrderedDict()
        """Channels of other nodes, with the time at which their clients went."""

    def lost(self, channel: Origin) -> None:
        """Drop the pops of a client of this node whose connection has closed, here and at the leader."""
        self._held.drop(channel.key)
        if channel.forwards:
            command = RemotingCommand(RequestCode.CHANNEL_GONE, flag=FLAG_ONEWAY)
            self._requests.pass_on(own_request(channel, command, self._env.now()))

    def note(self, request: Request) -> None:
        """Drop the pops that another node passed on for a client that has gone (20019)."""
        channel, now = request.origin.key, self._env.now()
        if request.origin.is_forwarded:
            self._gone_elsewhere[channel] = now
            while now - next(iter(self._gone_elsewhere.values())) > KEPT_S:
                self._gone_elsewhere.popitem(last=False)
            self._held.drop(channel)
        request.respond()

    def has_sent(self, request: Request) -> bool:
        """Return whether the client that sent a request has gone since."""
        return not request.origin.is_open or request.origin.key in self._gone_elsewhere
