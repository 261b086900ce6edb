"""Clusters as pytest fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from .cluster import LocalCluster

if TYPE_CHECKING:
    from _pytest.fixtures import FixtureFunctionDefinition

Scope: TypeAlias = Literal["function", "class", "module", "package", "session"]


def local_cluster_fixture(
    *, scope: Scope = "module", groups: int = 1, nodes: int = 3, config: str | None = None
) -> FixtureFunctionDefinition:
    """Return a fixture that yields a started cluster; needs pytest.

        cluster = local_cluster_fixture(scope="module")

        def test_something(cluster):
            ...

    Tests that share a cluster (any scope but `"function"`) find it as the previous test has left it.
    """
    import pytest

    @pytest.fixture(scope=scope)
    def cluster() -> Iterator[LocalCluster]:
        with LocalCluster(groups=groups, nodes=nodes, config=config) as started:
            yield started

    return cluster
