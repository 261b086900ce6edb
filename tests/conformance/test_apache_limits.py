"""Apache RocketMQ's own clients, unmodified, begin at the requested place in trimmed queues, and get errors."""

from __future__ import annotations

from itertools import count

import limit_rows
import pytest
from wiretap import Wiretap

_NUMBERS = count()


@pytest.mark.parametrize("kills", [False, True], ids=["undisturbed", "leader killed"])
def test_a_new_group_begins_at_the_end_of_a_queue_that_is_trimmed(trimmed_group, apache, kills):
    client, topic = apache(trimmed_group.namesrv), f"Trimmed{next(_NUMBERS)}"
    limit_rows.a_new_group_begins_at_the_end_of_a_trimmed_queue(trimmed_group, client, topic, kills=kills)


def test_a_body_of_4_mib_is_stored_and_one_that_is_longer_is_refused(quick_group, apache):
    with Wiretap(quick_group) as tap:
        limit_rows.only_a_body_of_4_mib_is_stored(quick_group, tap, apache(tap.namesrv), f"Large{next(_NUMBERS)}")
