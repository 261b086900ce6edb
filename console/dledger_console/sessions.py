"""Sessions of people: who is logged in, proofs that a form is ours, and patience with wrong logins.

Everything is in memory only, so a restart logs everybody out. A session's name is a random cookie. A form carries a
token that is made from the cookie's value, so nobody else's page can send it.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from dledger_client import Credentials

IDLE_SECONDS: Final = 30 * 60.0
"""Time after the last request of a person after which the session ends."""
MAX_SECONDS: Final = 12 * 3600.0
"""Time after the login after which a session ends, however busy it is."""
MAX_SESSIONS: Final = 1000
"""Maximum number of sessions. A further login ends the session whose last request is the oldest."""

FREE_GUESSES: Final = 2
"""Number of wrong logins of an account from an address that cost no time."""
FREE_GUESSES_OF_ADDRESS: Final = 20
"""Number of wrong logins from an address, of any accounts, that cost no time. Many people may share an address."""
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0
"""Time between wrong logins: it doubles with each, up to this time."""
MAX_GUESSED: Final = 4096
"""Maximum number of accounts and addresses whose wrong logins are counted. The oldest are forgotten."""

_ID_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """A person who is logged in. Times are by a monotonic clock, in seconds."""

    credentials: Credentials
    begun: float
    used: float


class Sessions:
    """Sessions by the value of their cookie."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(_ID_BYTES)
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def new_id(self) -> str:
        """Return a value for the cookie of somebody who has none."""
        return secrets.token_urlsafe(_ID_BYTES)

    def open(self, credentials: Credentials) -> str:
        """Log a person in. Return the value of the cookie, which is never the one from before the login."""
        session_id, now = self.new_id(), self._clock()
        self._sessions[session_id] = Session(credentials, now, now)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session_id

    def find(self, session_id: str, *, is_use: bool = True) -> Credentials | None:
        """Return whose session it is, None if it has ended. Unless it `is_use`, the session does not last longer."""
        session, now = self._sessions.get(session_id), self._clock()
        if session is None:
            return None
        if now - session.used > IDLE_SECONDS or now - session.begun > MAX_SECONDS:
            del self._sessions[session_id]
            return None
        if is_use:
            session.used = now
            self._sessions.move_to_end(session_id)
        return session.credentials

    def close(self, session_id: str) -> None:
        """Log a person out."""
        self._sessions.pop(session_id, None)

    def has(self, credentials: Credentials) -> bool:
        """Return whether a person has any session."""
        return any(session.credentials == credentials for session in self._sessions.values())

    def token(self, session_id: str) -> str:
        """Return the token that a form of this visitor carries."""
        return hmac.new(self._key, session_id.encode(), sha256).hexdigest()

    def is_token(self, session_id: str, token: str) -> bool:
        """Return whether a form carries the token of this visitor."""
        return bool(session_id) and hmac.compare_digest(self.token(session_id).encode(), token.encode())


class Patience:
    """Limiter of guesses: after `free` wrong logins with a name, each further one with it has to wait longer."""

    def __init__(self, free: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._guesses: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def seconds_left(self, name: str) -> float:
        """Return how long the next login with a name has to wait, 0 if it need not."""
        count, last = self._guesses.get(name, (0, 0.0))
        doublings = count - self._free - 1
        if doublings < 0:
            return 0.0
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(doublings, 32), MAX_PAUSE_SECONDS)
        return max(0.0, last + pause - self._clock())

    def note(self, name: str) -> None:
        """Remember a wrong login with a name."""
        count, _ = self._guesses.pop(name, (0, 0.0))
        self._guesses[name] = count + 1, self._clock()
        while len(self._guesses) > MAX_GUESSED:
            self._guesses.popitem(last=False)

    def forgive(self, name: str) -> None:
        """Forget a wrong login with a name: it was right."""
        count, last = self._guesses.pop(name, (0, 0.0))
        if count > 1:
            self._guesses[name] = count - 1, last
