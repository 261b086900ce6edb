"""Bugs of the delivery of replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dledger_broker.clients.relay import Gone, Outcome, OutcomeCallback, Relay, TimedOut, _Call, _Place
from dledger_broker.features.replies import requests
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_sim.brokers.schedules.relays import answers_of_two_clients
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("replies")


def _without_an_answer(
    self: Relay,
    client_id: str,
    code: int,
    ext: Mapping[str, str],
    body: bytes,
    _timeout_s: float,
    done: OutcomeCallback,
) -> None:
    _real_call(self, client_id, code, ext, body, 0.0, done)


_real_call = Relay.call

CATALOGUE.add(
    "reply-answered-when-pushed",
    "a replier is told that its reply has arrived once the requester has confirmed that",
    (Relay, "call", _without_an_answer),
)


def _to_any_of_the_group(
    self: Relay,
    _client_id: str,
    code: int,
    ext: Mapping[str, str],
    body: bytes,
    timeout_s: float,
    done: OutcomeCallback,
) -> None:
    self.call_producer("requesters", code, ext, body, timeout_s, done)


CATALOGUE.add(
    "reply-to-any-of-the-group",
    "a reply goes to the client that it names",
    (Relay, "call", _to_any_of_the_group),
)


def _at_the_next_place_in_doubt(self: Relay, places: deque[_Place], call: _Call, done: OutcomeCallback) -> None:
    left = deque(places)

    def settled(outcome: Outcome) -> None:
        if left and (isinstance(outcome, TimedOut) or outcome == Gone(may_have_got=True)):
            _real_try_places(self, left, call, done)
        else:
            done(outcome)

    _real_try_places(self, places, call, settled)
    if left:
        left.popleft()


_real_try_places = Relay._try_places  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "reply-pushed-again-in-doubt",
    "a reply that a client may have received is not sent to it again",
    (Relay, "_try_places", _at_the_next_place_in_doubt),
)


def _by_number_alone(self: Relay, channel: str, command: RemotingCommand) -> None:
    calls_by_channel = self._pending_calls
    of_another = (key for key, calls in calls_by_channel.items() if command.opaque in calls)
    _real_take_answer(self, next(of_another, channel), command)


_real_take_answer = Relay.take_answer

CATALOGUE.add(
    "answer-of-another-client-taken",
    "a client's answer is accepted only over the connection over which the client was asked",
    (Relay, "take_answer", _by_number_alone),
    schedule=answers_of_two_clients,
)


def _gone_was_heard(requester: str, outcome: Outcome) -> RemotingError | None:
    return None if outcome == Gone(may_have_got=True) else _real_error(requester, outcome)


_real_error = requests._error  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "lost-connection-taken-for-an-answer",
    "a requester whose connection is lost may or may not have a reply: no replier is told that it has",
    (requests, "_error", _gone_was_heard),
)
