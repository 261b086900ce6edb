"""What a broker answers to every request that it knows, area by area, and what that puts into its log."""

from types import ModuleType

import pytest

from tests.recorded.areas import (
    accounts,
    assignments,
    consumer_questions,
    groups,
    locks,
    membership,
    node,
    offsets,
    pins,
    pop,
    pulling,
    queries,
    quotas,
    ranges,
    recalls,
    replies,
    resets,
    retries,
    sending,
    settings,
    statistics,
    topics,
    transactions,
)
from tests.recorded.conversation import Record, fix_names
from tests.recorded.golden_files import compare

AREAS = (
    sending,
    pulling,
    offsets,
    membership,
    topics,
    groups,
    queries,
    ranges,
    pins,
    node,
    locks,
    transactions,
    retries,
    recalls,
    pop,
    replies,
    assignments,
    statistics,
    resets,
    consumer_questions,
    accounts,
    settings,
    quotas,
)


@pytest.fixture(autouse=True)
def fixed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_names(monkeypatch)


def name_of(area: ModuleType) -> str:
    return area.__name__.rpartition(".")[2]


@pytest.mark.parametrize("area", AREAS, ids=name_of)
async def test_answers_are_as_recorded(area: ModuleType) -> None:
    record = Record()
    await area.talk(record)
    compare(f"answers/{name_of(area)}", record.closed())


async def test_every_code_that_a_broker_knows_is_asked() -> None:
    record = Record()
    for area in AREAS:
        await area.talk(record)
    assert record.routes, "the codes that it knows"
    assert record.routes <= record.asked
