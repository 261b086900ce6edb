"""Messages of kombu are stored with what identifies a task, and for the time at which it is due."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from dledger_celery.envelopes import decode, due_time, encode, identity, is_early, make_message

NOW = 1_800_000_000.0
DAY = 86_400.0


def payload(headers=None, **properties):
    return {
        "body": "W10=",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers or {},
        "properties": {"delivery_info": {"exchange": "", "routing_key": "celery"}, **properties},
    }


def task(eta=None, **headers):
    text = None if eta is None else datetime.fromtimestamp(eta, UTC).isoformat()
    return payload({"task": "add", "id": "7 ü", "retries": 0, "eta": text, **headers}, delivery_tag="t")


def test_a_message_is_a_json_object_without_the_tag_of_one_delivery():
    stored = encode(task())
    assert json.loads(stored) == {**payload(), "headers": task()["headers"]}
    again, other = decode(stored), decode(stored)
    assert again["properties"].pop("delivery_tag") != other["properties"].pop("delivery_tag")
    assert again == other


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"7", b"{}", b'{"body": "", "properties": {}}', b'{"body": 1}'])
def test_anything_else_is_refused(body):
    with pytest.raises(ValueError):  # noqa: PT011 -- its words are those of the JSON library for some
        decode(body)


def test_a_task_is_known_by_its_id_and_retry_number():
    assert identity(task()) == ("7%20%C3%BC", "7%20%C3%BC:0")
    assert identity(task(retries=2))[1] == "7%20%C3%BC:2"
    assert identity(payload(message_id="m")) == ("m", "m")
    assert identity(payload(correlation_id="c")) == (None, None), "several messages may have it"


def test_a_task_for_later_is_stored_for_the_millisecond():
    message = make_message(task(NOW + 1.5), 10.0, NOW)
    assert message.deliver_at == round((NOW + 1.5) * 1000)
    assert make_message(task(NOW - 1), 10.0, NOW).deliver_at is None
    assert make_message(task(), 10.0, NOW).deliver_at is None


@pytest.mark.parametrize("days", [0.5, 2.9, 3, 3.5, 10, 40])
def test_a_longer_delay_is_taken_in_equal_steps_that_every_worker_computes_alike(days):
    longest, eta, now, steps = 3 * DAY, NOW + days * DAY, NOW, []
    while (due := due_time(task(eta), longest, now)) is not None:
        assert now < due <= now + longest
        assert due_time(task(eta), longest, now + 1e-3 * (due - now)) == due, "a little later it is the same"
        now = due
        steps.append(due)
        assert (due == eta) or is_early(task(eta), now)
    assert steps[-1] == eta
    assert len(steps) <= days / 2.9 + 1


def test_an_eta_without_a_time_zone_is_left_to_the_worker():
    naive = (datetime.fromtimestamp(NOW, UTC) + timedelta(days=30)).replace(tzinfo=None).isoformat()
    for eta in (naive, "tomorrow", 7):
        message = payload({"task": "add", "id": "7", "eta": eta})
        assert due_time(message, DAY, NOW) is None
        assert not is_early(message, NOW)


def test_a_task_that_comes_a_little_early_is_held_by_the_worker():
    assert not is_early(task(NOW + 59), NOW)
    assert is_early(task(NOW + 61), NOW)
