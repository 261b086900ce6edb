"""Known bugs of what both engines are made of."""

from collections.abc import Callable

import pytest

from dledger.consensus.peers import Mode
from dledger.core.progress import Progress

Break = Callable[[pytest.MonkeyPatch], None]


def any_answer_ends_a_probe(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement that covers less than the probe asked for is taken for its answer."""

    def accepted(one: Progress, verified_index: int, base_index: int, now: float) -> None:
        if one.mode is Mode.PROBE:
            one.restart(verified_index + 1, Mode.STREAM)
        real(one, verified_index, base_index, now)

    real = Progress.accepted
    patch.setattr(Progress, "accepted", accepted)
