"""Groups and nodes of several tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_group import Group

from dledger.replica.upkeep import members


@pytest.fixture
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """Return a group that is not started, with the options that its module names in `GROUP_OPTIONS`."""
    group = Group(tmp_path, **getattr(request.module, "GROUP_OPTIONS", {}))
    yield group
    await group.stop()


@pytest.fixture
def soon_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a leader replace a silent member soon."""
    monkeypatch.setattr(members, "REPLACE_AFTER_S", 0.5)
