"""Age of the dates that clients of a proxy sign, which is all that they sign.

Java's, Go's and Python's clients sign the local time, and say that it is UTC. Nothing else in a request tells their
time zone. So a date may also have one of the configured UTC offsets.

A date counts from the arrival of its request at the client's node. Otherwise a request that waits for messages would be
refused when it is judged again, although its date was right when it came.
"""

from __future__ import annotations

from dledger.environment import Environment
from dledger_broker.kernel.access import AccessRefused
from dledger_broker.kernel.live_config import LiveConfig
from dledger_remoting.speech import Speech, parse_date


class SignedDates:
    """Judge of signed dates, by this node's wall clock and the keys `max_spoken_age_ms` and `spoken_utc_offsets`."""

    def __init__(self, env: Environment, live: LiveConfig) -> None:
        self._env = env
        self._live = live

    def require_recent(self, speech: Speech, received: float) -> None:
        """Raise `AccessRefused` unless the text that a client signed is a date near the arrival of its request.

        `received` is a time of the event loop's clock.
        """
        try:
            signed_s = parse_date(speech.text)
        except ValueError as error:
            raise AccessRefused(f"check signature failed. (User:{speech.account} has signed {error})") from None
        arrived_s = self._env.wall_ms() / 1000 - (self._env.now() - received)
        config = self._live.config
        age_s, limit_s = arrived_s - signed_s, config.max_spoken_age_ms / 1000
        if min(abs(age_s + offset_s) for offset_s in config.spoken_offsets_s(arrived_s)) > limit_s:
            raise AccessRefused(
                f"check signature failed. (User:{speech.account} has signed {speech.text}, which is "
                f"{abs(age_s):.0f} s {'old' if age_s > 0 else 'ahead of this node'}, the limit is {limit_s:g} s: set "
                "the client's clock right, or run it with TZ=UTC, or name its UTC offset in spoken_utc_offsets)"
            )
