"""Random check-backs (39) over a producer's connection are answered or logged, and the next check-back is heard."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast
from unittest.mock import create_autospec

from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_client import Decision, OpenTransaction, TransactionProducer
from dledger_client.cluster.connection import Connection
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command
from dledger_remoting.headers import EndTransactionHeader, decode_ext
from tests.client.test_transaction_checks import question

SOUND: Final = question(b"sound")
NAMES: Final = [*SOUND.ext, "msgId", "transactionId", "offsetMsgId", "unknown", ""]
VALUES: Final = st.one_of(
    st.sampled_from(["", " ", "0", "-1", "NaN", "9223372036854775807", "9223372036854775808", "\u0663", "x" * 5000]),
    st.integers(-(1 << 66), 1 << 66).map(str),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


@st.composite
def fields(draw: st.DrawFn) -> dict[str, str]:
    """Draw the fields of a check-back, some left out, some changed."""
    kept = {name: value for name, value in SOUND.ext.items() if draw(st.integers(0, 19)) < 19}
    return kept | draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a record, perhaps with changed bytes or cut off, or something else."""
    data = bytearray(SOUND.body)
    kind = draw(st.sampled_from(["sound", "changed", "cut", "longer", "other"]))
    if kind == "other":
        return draw(st.binary(max_size=120))
    if kind == "changed":
        for place in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
            data[place] = draw(st.integers(0, 255))
    if kind == "cut":
        del data[draw(st.integers(0, len(data) - 1)) :]
    return bytes(data) + (draw(st.binary(max_size=9)) if kind == "longer" else b"")


class Heard(logging.Handler):
    """Log of the client, and exceptions that nobody has caught."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        (self.tracebacks if record.exc_info else self.lines).append(record.getMessage())


class Asked:
    """Producer that gets requests of brokers over a connection. Its answers are recorded.

    `decision` is the application's decision.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.transactions: list[OpenTransaction] = []
        self.ends: list[EndTransactionHeader] = []
        self.uncaught: list[str] = []
        self.producer = TransactionProducer("127.0.0.1:1", group="g", check=self._check)
        self.producer._producer._ask_leader = self._end  # type: ignore[method-assign,assignment]
        self.connection = Connection("10.0.0.1:10911", self.producer._on_request, lambda _: None)
        transport = create_autospec(asyncio.Transport, instance=True)
        transport.get_extra_info.return_value = None  # it has no socket
        self.connection.connection_made(transport)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.uncaught.append(context["message"]))

    async def _check(self, transaction: OpenTransaction) -> Decision:
        self.transactions.append(transaction)
        return self.decision

    async def _end(self, _group: str, code: int, ext: dict[str, str], _timeout: float) -> None:
        assert code == RequestCode.END_TRANSACTION
        self.ends.append(decode_ext(EndTransactionHeader, ext))

    async def hear(self, command: RemotingCommand) -> None:
        """Deliver a request of the broker, and run everything that follows."""
        self.connection.data_received(encode_command(command))
        async with asyncio.timeout(10):
            await asyncio.gather(*self.producer._check_tasks)


@settings(max_examples=400, deadline=None)
@given(
    ext=fields(),
    body=bodies(),
    serialize_type=st.sampled_from([0, 1]),
    flag=st.sampled_from([0, FLAG_ONEWAY]),
    decision=st.sampled_from(["commit", "rollback", "unknown"]),
)
def test_a_strange_check_back_is_answered_or_logged_and_the_next_is_heard(
    ext: dict[str, str], body: bytes, serialize_type: int, flag: int, decision: str
) -> None:
    strange = RemotingCommand(SOUND.code, ext=ext, body=body, serialize_type=serialize_type, flag=flag)

    async def scenario() -> Asked:
        asked = Asked(cast(Decision, decision))
        await asked.hear(strange)
        await asked.hear(question(b"the next one"))
        assert asked.connection.is_open
        return asked

    heard, logger = Heard(), logging.getLogger("dledger_client")
    logger.addHandler(heard)
    try:
        asked = asyncio.run(scenario())
    finally:
        logger.removeHandler(heard)
    assert asked.uncaught == []
    assert heard.tracebacks == []
    assert asked.transactions[-1].body == b"the next one"
    assert len(asked.ends) == len(asked.transactions) == 2 - len(heard.lines)
    assert not asked.producer._check_tasks
