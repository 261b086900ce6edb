"""Requests that a single consumer answers. Its answer is passed on byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.relay import Answer, Busy, Delivered, Gone, Outcome, Relay, TimedOut
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.routes import Effect, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import ConsumeMessageTimeout, InvalidParameter, RemotingError, ServerError, SystemBusy
from dledger_remoting.headers import ConsumeDirectlyHeader, ConsumerRunningInfoHeader, decode_ext
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.signatures import without_signature

ANSWERED_WITHIN_S: Final = 10.0
"""Time limit in seconds for a consumer's answer, as in RocketMQ's brokers. Many clients never answer."""
_FORWARDED_WITHIN_S: Final = 15.0
"""Time limit in seconds for the leader's answer at a node that forwards; longer than the consumer's time limit."""


class ConsumerQuestions(Part):
    """Part that sends questions to consumers. It works on the leader, which knows where clients are connected."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: LeadershipView,
        gossip: Gossip,
        relay: Relay,
        requests: Requests,
        broker_group: str,
    ) -> None:
        self._machine = machine
        self._group = group
        self._gossip = gossip
        self._relay = relay
        self._requests = requests
        self._broker_group = broker_group

    @property
    def routes(self) -> Mapping[int, Route]:
        """Return the routes. Request 309 counts as a change: repeating it would consume the message twice."""
        looks = Effect(changes=False, answer_timeout_s=_FORWARDED_WITHIN_S)
        consumes = Effect(changes=True, answer_timeout_s=_FORWARDED_WITHIN_S)
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: Route(self.running_info, Needs.LEADER, looks),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Route(self.consume, Needs.LEADER, consumes),
        }

    def running_info(self, request: Request) -> None:
        """Handle 307: answer with what a consumer reports about itself."""
        header = decode_ext(ConsumerRunningInfoHeader, request.ext)
        ext = without_signature(request.ext)
        self._when_known(
            request, partial(self._ask, request, header.consumer_group, header.client_id, ext, request.body)
        )

    def consume(self, request: Request) -> None:
        """Handle 309: have a consumer consume a message now, even if it has consumed the message before."""
        header = decode_ext(ConsumeDirectlyHeader, request.ext)
        if not header.client_id:
            raise InvalidParameter("clientId is empty: name the consumer that is to consume the message")
        _, position = parse_offset_message_id(header.msg_id)
        self._requests.spawn(request, self._consume(request, header, position))

    async def _consume(self, request: Request, header: ConsumeDirectlyHeader, position: int) -> None:
        message = await self._machine.lookup.message_at(position)
        if message is None:
            raise ServerError(f"can not find message by the offset, {position}")
        ext = {**without_signature(request.ext), "brokerName": self._broker_group}
        self._when_known(request, partial(self._ask, request, header.consumer_group, header.client_id, ext, message))

    def _when_known(self, request: Request, ask: Callable[[], None]) -> None:
        """Call `ask` once all nodes have reported their clients to the leader."""

        def complete() -> None:
            if self._group.ready:
                ask()
            else:  # the leadership was lost while waiting for the other nodes' reports
                self._requests.pass_on(request)

        self._gossip.after_all_tables(complete)

    def _ask(self, request: Request, group: str, client_id: str, ext: dict[str, str], body: bytes) -> None:
        member = self._gossip.merged.member(group, client_id)
        if member is None:
            request.fail(_not_online_error(group, client_id))
            return
        done = partial(self._done, request, group, client_id)
        self._relay.call(member, request.code, ext, body, ANSWERED_WITHIN_S, done)

    def _done(self, request: Request, group: str, client_id: str, outcome: Outcome) -> None:
        match outcome:
            case Answer(code=code, remark=remark, ext=ext, body=body):
                request.respond(code, remark or None, ext, body)
            case _:
                self._requests.fail(request, _error(group, client_id, outcome))


def _not_online_error(group: str, client_id: str) -> RemotingError:
    return ServerError(f"The Consumer <{group}> <{client_id}> not online")


def _error(group: str, client_id: str, outcome: Gone | TimedOut | Busy | Delivered) -> RemotingError:
    match outcome:
        case Gone(may_have_got=False):
            return _not_online_error(group, client_id)
        case Busy():
            return SystemBusy("max_relayed_calls requests to clients wait for answers: ask again later")
        case Gone() | TimedOut() | Delivered():
            return ConsumeMessageTimeout(
                f"consumer <{group}> <{client_id}> Timeout: it did not answer within {ANSWERED_WITHIN_S:.0f} s, and "
                "may have the request"
            )
