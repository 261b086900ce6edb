"""Queues and exchanges have topics of their own, whatever their names are."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger_celery.names import MAX_NAME_CHARS, Names
from dledger_remoting.topics import is_system_group, is_system_topic, validate_group, validate_topic

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
HOSTS = st.sampled_from(["", "shop", "ab", "2"])


@given(name=NAMES, host=HOSTS)
@example(name="video.high@worker/1", host="shop")
@example(name="TBW102", host="")
@example(name="DEFAULT_CONSUMER", host="")
@example(name="%RETRY%x", host="")
@example(name="rmq_sys_x", host="")
def test_a_queue_is_read_back_from_its_topic_and_no_name_is_the_services_own(name, host):
    names = Names(host)
    topic = names.topic(name)
    assert names.queue(topic) == name
    assert names.group(name) == topic
    for valid in (topic, names.topic(name, 9), names.exchange(name)):
        validate_topic(valid)
        assert not is_system_topic(valid)
    validate_group(topic)
    assert not is_system_group(topic)


@given(st.lists(st.tuples(HOSTS, NAMES, st.integers(0, 9)), min_size=2, max_size=2, unique=True))
@example([("ab", "2ex", 0), ("", "ab.x", 0)])
@example([("", "a", 9), ("", "a%P9", 0)])
def test_two_queues_never_share_a_topic_and_no_exchange_has_one_of_theirs(queues):
    one, other = (Names(host).topic(name, priority) for host, name, priority in queues)
    assert one != other
    assert {Names(host).exchange(name) for host, name, _ in queues}.isdisjoint({one, other})


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARS + 1), "ü" * 20])
def test_a_name_that_is_empty_or_too_long_is_refused_with_its_length(name):
    with pytest.raises(ValueError, match="choose a name for which it has 1 to 112"):
        Names().topic(name)


def test_a_virtual_host_has_plain_letters():
    with pytest.raises(ValueError, match="use only letters, digits"):
        Names("a.b")
