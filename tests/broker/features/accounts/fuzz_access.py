"""Requests of all codes, signed, unsigned and mangled, to a leader and through a follower."""

import asyncio
import logging
import random
from collections import Counter
from typing import Final

from guarded_broker import ROOT_CREDENTIALS, credentials, lose_leadership, make_account, only_frame
from served_broker import FakeClient

from dledger.types import ReplicaId
from dledger_broker.frontend.forwarding import Envelope, _encode_envelope, _principal_to_send
from dledger_broker.kernel.requests import Request
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.signatures import Credentials, is_signed_with, signed
from tests.broker.features.accounts.test_no_way_around import FOR_EVERY_ACCOUNT, guarded
from tests.broker.requests.test_refusals import ANSWERS, NAMES, REQUESTS

REFUSED: Final = 16
TOO_MANY_WRONG: Final = 2
RENEWED_AFTER: Final = 2_000
"""Number of requests to a pair of nodes. Then a new pair replaces it, without the changes that administrators made."""
VALUES: Final = (
    *("", " ", "0", "-1", "1", "2147483648", "-9223372036854775809", "NaN", "true", "null", "x" * 40_000),
    *("T1", "absent", "CG", "%RETRY%CG", "%DLQ%CG", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "8", "12"),
    *("app", "admin", "dledger.root", "dledger.node", "User:app", "Topic:*", "All", "10.0.0.9", "*", "\x01", "\x02"),
    *("DELAY\x013\x02", "REAL_TOPIC\x01T9\x02POP_CK\x01x", "TRAN_MSG\x01true\x02", "REPLY_TO_CLIENT\x01c\x02"),
)
BODIES: Final = (
    *(b"", b"x", b"{", b"[]", b"{}", b"null", b'{"username":"app","userType":"Super"}', b"autoCreateTopicEnable=true"),
    *(b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}]}', b'{"groupName":"G"}', bytes(300)),
    *(b'{"kind":"topic","name":"T1","messagesPerSecond":1}', b'{"subject":"User:app","policies":[]}'),
    b'{"consumerGroup":"CG","clientId":"c"}',
)
UNKNOWN_CODES: Final = (0, 1, 999, 20_000, 40_404, -1)


class _Loud(logging.Handler):
    """Log handler that keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _is_for_every_account(data: bytes) -> bool:
    """Return whether a mangled frame, whose code and flags are not signed, is a request that every account may make."""
    command = decode_command(only_frame(data))
    return command.code in FOR_EVERY_ACCOUNT and is_signed_with(
        credentials("app").secret, command.ext, command.body, command.version
    )


class Pair:
    """Leader, and a follower that forwards to it. Both have accounts `app`, without rights, and `admin`."""

    def __init__(self) -> None:
        self.leader, self.follower = guarded(), guarded()
        for broker in (self.leader, self.follower):
            make_account(broker, "app")
            make_account(broker, "admin", "Super")
        lose_leadership(self.follower)
        self.follower.service.forwarder.pass_on = self._pass_on  # type: ignore[method-assign]

    def _pass_on(self, request: Request) -> None:
        origin, header, body = request.origin, bytes(request.header), bytes(request.body)
        ids = tuple(origin.client_ids)
        envelope = Envelope(
            origin.key, origin.address.ip, origin.address.port, ids, 0, request.serialize_type, header, body, 0,
            _principal_to_send(request.principal),
        )  # fmt: skip

        def reply(answer: bytes) -> None:
            if len(answer) > 1:
                origin.answer_frame(answer[1:])
            else:
                origin.settle()

        self.leader.service.forwarder.on_request(ReplicaId(NODE_ID, 1), _encode_envelope(envelope), reply)

    def state(self) -> tuple[int, ...]:
        """Return a value that differs once anything has changed."""
        return tuple(
            number
            for one in (self.leader, self.follower)
            for number in (one.memory.machine.digest(), one.memory.log.end)
        )

    async def close(self) -> None:
        """End the requests that wait for a disk from which nobody reads any more."""
        for broker in (self.leader, self.follower):
            await broker.service.requests.close()

    def settle(self) -> None:
        for broker in (self.leader, self.follower):
            broker.settle()


class Fuzz:
    """Random requests to a pair of nodes. `asked` counts them by sender and node."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pair = Pair()
        self.asked: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()

    async def run(self, requests: int) -> None:
        """Send requests. Raise `AssertionError` if a sender gets what nobody may get, or if a handler fails."""
        loud = _Loud()
        logging.getLogger().addHandler(loud)
        logging.disable(logging.WARNING)
        try:
            for number in range(requests):
                if number % RENEWED_AFTER == RENEWED_AFTER - 1:
                    await self._pair.close()
                    self._pair = Pair()
                what = await self._one()
                assert not loud.lines, (what, loud.lines)
        finally:
            logging.disable(logging.NOTSET)
            logging.getLogger().removeHandler(loud)

    async def _one(self) -> str:
        code, ext, body = self._request()
        who, ext = self._signed(ext, body)
        broker = self._pair.follower if self._random.random() < 0.4 else self._pair.leader
        where = "follower" if broker is self._pair.follower else "leader"
        self.asked[f"{who} to the {where}"] += 1
        command = RemotingCommand(code, opaque=7, ext=ext, body=body, serialize_type=self._random.choice((0, 0, 1)))
        data = bytearray(encode_command(command))
        if who == "mangled":
            self._mangle(data)
        before = self._pair.state()
        client = broker.client(f"client/{self.asked.total()}")
        answer = await self._answer(client, bytes(data), waits=who == "admin")
        what = f"{who} to the {where}: {code} {ext} {body!r} is answered {answer}"
        if answer is not None:
            self.answers[answer.code] += 1
        if who == "admin":
            return what
        assert self._pair.state() == before, what
        assert not client.pushed, what
        if answer is None:
            return what
        if who not in ("app", "mangled"):
            assert (answer.code in (REFUSED, TOO_MANY_WRONG), answer.body) == (True, b""), what
        elif not (code in FOR_EVERY_ACCOUNT if who == "app" else _is_for_every_account(bytes(data))):
            assert (answer.code in ANSWERS, answer.body) == (False, b""), what
        return what

    def _request(self) -> tuple[int, dict[str, str], bytes]:
        rnd = self._random
        code, fields = REQUESTS[rnd.choice(list(REQUESTS))]
        ext = dict(fields)
        if rnd.random() < 0.3:
            del ext[rnd.choice(list(ext))]
        for _ in range(rnd.choice((0, 0, 1, 1, 2, 3))):
            ext[rnd.choice((*ext, *NAMES) or NAMES)] = rnd.choice(VALUES)
        if rnd.random() < 0.03:
            code = rnd.choice(UNKNOWN_CODES)
        return int(code), ext, rnd.choice(BODIES)

    def _signed(self, ext: dict[str, str], body: bytes) -> tuple[str, dict[str, str]]:
        """Return the sender, and the fields as they are sent."""
        rnd = self._random
        app, admin = credentials("app"), credentials("admin")
        match rnd.choice(
            ("nobody", "no signature", "another secret", "another body", "unknown", "app", "app", "admin", "mangled")
        ):
            case "nobody":
                return "nobody", ext
            case "no signature":
                return "unsigned", {**ext, "AccessKey": rnd.choice(("app", "admin", "dledger.root", "dledger.node"))}
            case "another secret":
                forged = Credentials(rnd.choice(("admin", "dledger.root", "dledger.node")), app.secret)
                return "forged", signed(ext, body, forged)
            case "another body":
                return "forged", signed(ext, body + b"x", rnd.choice((app, admin, ROOT_CREDENTIALS)))
            case "unknown":
                return "unknown", signed(ext, body, credentials("nobody"))
            case "app" | "mangled" as who:
                return who, signed(ext, body, app)
        return "admin", signed(ext, body, rnd.choice((admin, ROOT_CREDENTIALS)))

    def _mangle(self, data: bytearray) -> None:
        """Change bytes behind the lengths, so that the data is still one frame."""
        for _ in range(self._random.choice((1, 1, 2, 8))):
            data[self._random.randrange(8, len(data))] = self._random.randrange(256)

    async def _answer(self, client: FakeClient, data: bytes, *, waits: bool) -> RemotingCommand | None:
        """Return the answer to a client's request. None: it breaks the protocol, is oneway, or is an answer itself."""
        try:
            client.feed(data)
        except FrameError:
            return None
        for turn in range(40):
            self._pair.settle()
            if client.answers:
                return client.answers[-1]
            await asyncio.sleep(0)
            if turn > 20:
                client.broker.advance(0.5)
                self._pair.leader.advance(0.5)
            if not waits and turn > 30:
                break
        return None
