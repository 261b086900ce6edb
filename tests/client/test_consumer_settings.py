"""A consumer takes its settings in groups or by their own names, and never both for one group."""

from pathlib import Path
from typing import get_type_hints

import pytest

from dledger_client import (
    Delivery,
    InvalidArgumentError,
    PushConsumer,
    ReadAhead,
    Sharing,
    SyncConsumer,
    TimeLimits,
)
from dledger_client.settings import ConsumerSettings, SettingsByName

NOWHERE = "127.0.0.1:1"
GROUPS = {"delivery": Delivery, "sharing": Sharing, "read_ahead": ReadAhead, "times": TimeLimits}
OTHER_VALUES = {
    "auto_ack": False,
    "orderly": True,
    "queue_locks": True,
    "priority": True,
    "max_reconsume_times": 3,
    "keep_unreadable": True,
    "start_from": "last",
    "strategy": "circle",
    "broadcast": True,
    "offset_file": Path("offsets.json"),
    "pull_batch_size": 5,
    "max_outstanding": 6,
    "max_outstanding_bytes": 7,
    "max_span": 8,
    "max_topic_outstanding": 9,
    "max_topic_bytes": 10,
    "start_timeout": 11.0,
    "close_timeout": 12.0,
    "warn_after": 13.0,
}
NEEDED = {
    "queue_locks": {"orderly": True},
    "broadcast": {"offset_file": Path("offsets.json")},
    "offset_file": {"broadcast": True},
}
"""Settings that another one needs, of the same group."""


def group_of(name):
    return next(group for group, kind in GROUPS.items() if name in kind.__struct_fields__)


def test_every_setting_stands_in_one_group_and_has_its_name_and_type_outside_of_it():
    of_groups = [hint for kind in GROUPS.values() for hint in get_type_hints(kind).items()]
    assert len(of_groups) == len(dict(of_groups))
    assert get_type_hints(SettingsByName) == dict(of_groups)
    assert OTHER_VALUES.keys() == dict(of_groups).keys()
    assert ConsumerSettings._fields == tuple(GROUPS)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_setting_by_its_own_name_is_the_setting_of_its_group(name):
    group, given = group_of(name), {name: OTHER_VALUES[name], **NEEDED.get(name, {})}
    by_name = PushConsumer(NOWHERE, "CG", "T", **given).settings
    assert getattr(getattr(by_name, group), name) == OTHER_VALUES[name]
    assert by_name == PushConsumer(NOWHERE, "CG", "T", **{group: GROUPS[group](**given)}).settings
    assert by_name != PushConsumer(NOWHERE, "CG", "T").settings


def test_the_defaults_are_those_of_the_groups():
    assert PushConsumer(NOWHERE, "CG", "T").settings == (Delivery(), Sharing(), ReadAhead(), TimeLimits())


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_setting_that_is_given_beside_its_group_is_refused(name):
    group = group_of(name)
    kind = GROUPS[group]
    expected = rf"^{name} and {group} are both given: set it in {group}={kind.__name__}\(\.\.\.\)$"
    with pytest.raises(InvalidArgumentError, match=expected):
        PushConsumer(NOWHERE, "CG", "T", **{group: kind(), name: OTHER_VALUES[name]})


@pytest.mark.parametrize("kind", [PushConsumer, SyncConsumer])
def test_a_setting_of_no_group_is_refused_by_its_name(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_outstandings'"):
        kind(NOWHERE, "CG", "T", max_outstandings=5)


@pytest.mark.parametrize(
    ("group", "wrong", "told"),
    [
        (ReadAhead(max_span=0), {}, "max_span=0: at least 1"),
        (ReadAhead(pull_batch_size="5"), {}, r"read_ahead.pull_batch_size='5': an int is expected"),
        (Delivery(queue_locks=True), {}, "queue_locks are for orderly consumers"),
        (Delivery(orderly=True, queue_locks=True), {"broadcast": True, "offset_file": Path("x")}, "queue_locks are"),
        (Sharing(broadcast=True), {}, "offset_file belongs to broadcast consumers"),
        (Sharing(start_from=-1), {}, "-1 is no place to start"),
        (TimeLimits(warn_after=0), {}, "warn_after=0: more than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_group_too(group, wrong, told):
    name = next(name for name, kind in GROUPS.items() if isinstance(group, kind))
    with pytest.raises(InvalidArgumentError, match=told):
        PushConsumer(NOWHERE, "CG", "T", **{name: group}, **wrong)


def test_a_blocking_consumer_takes_the_same_groups(threaded_cluster):
    groups = {"delivery": Delivery(auto_ack=False), "times": TimeLimits(close_timeout=0.1)}
    for body in (b"one", b"two"):
        threaded_cluster.group.store("T", 0, body)
    with SyncConsumer(threaded_cluster.namesrv, "CG", "T", **groups) as consumer:
        assert [next(consumer).body, next(consumer).body] == [b"one", b"two"]
        consumer.commit()
    assert threaded_cluster.group.offsets.get(("CG", "T", 0), 0) == 0
