"""A broker's answers to every known request stay the same, area by area, and so do their entries in its log."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.recorded.conversation import Record, fix_names
from tests.recorded.golden_files import compare

FILES = sorted((Path(__file__).parent / "areas").glob("*.py"))
AREAS = [import_module(f"tests.recorded.areas.{path.stem}") for path in FILES]


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
