"""Bugs of replies that are passed on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dledger_broker.clients.relay import Gone, Outcome, Relay, TimedOut, Told, _Call, _Place
from dledger_broker.features.replies import requests
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_sim.brokers.schedules.relays import answers_of_two_clients
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("replies")


def _without_an_answer(
    self: Relay, client_id: str, code: int, ext: Mapping[str, str], body: bytes, _timeout_s: float, done: Told
) -> None:
    _real_call(self, client_id, code, ext, body, 0.0, done)


_real_call = Relay.call

CATALOGUE.add(
    "reply-answered-when-pushed",
    "a replier is told that its reply has arrived once its requester has said so",
    (Relay, "call", _without_an_answer),
)


def _to_any_of_the_group(
    self: Relay, _client_id: str, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float, done: Told
) -> None:
    self.call_producer("requesters", code, ext, body, timeout_s, done)


CATALOGUE.add(
    "reply-to-any-of-the-group",
    "a reply goes to the client that it names",
    (Relay, "call", _to_any_of_the_group),
)


def _at_the_next_place_in_doubt(self: Relay, places: deque[_Place], call: _Call, done: Told) -> None:
    left = deque(places)

    def settled(outcome: Outcome) -> None:
        if left and (isinstance(outcome, TimedOut) or outcome == Gone(may_have_got=True)):
            _real_try(self, left, call, done)
        else:
            done(outcome)

    _real_try(self, places, call, settled)
    if left:
        left.popleft()


_real_try = Relay._try  # noqa: SLF001 -- what a bug would change

CATALOGUE.add(
    "reply-pushed-again-in-doubt",
    "what a client may have got is not sent to it again",
    (Relay, "_try", _at_the_next_place_in_doubt),
)


def _by_number_alone(self: Relay, channel: str, command: RemotingCommand) -> None:
    asked = self._asked
    of_another = (key for key, numbers in asked.items() if command.opaque in numbers)
    _real_take_answer(self, next(of_another, channel), command)


_real_take_answer = Relay.take_answer

CATALOGUE.add(
    "answer-of-another-client-taken",
    "the answer to what a client is asked comes over the connection over which it was asked",
    (Relay, "take_answer", _by_number_alone),
    schedule=answers_of_two_clients,
)


def _gone_was_heard(requester: str, outcome: Outcome) -> RemotingError | None:
    return None if outcome == Gone(may_have_got=True) else _real_error(requester, outcome)


_real_error = requests._error  # noqa: SLF001 -- what a bug would change

CATALOGUE.add(
    "lost-connection-taken-for-an-answer",
    "a requester whose connection is lost may or may not have a reply: nobody is told that it has",
    (requests, "_error", _gone_was_heard),
)
