"""A cluster of real processes for tests, of this project and of applications.

It contains the parts that tests need beside the client itself; the client imports nothing of it. Start with
`LocalCluster`. `delivered` makes messages for tests that need no cluster.
"""

from __future__ import annotations

from .cluster import ClusterError, LocalCluster, NodeStatus, local_cluster_fixture
from .deliveries import delivered, is_wanted

__all__ = ["ClusterError", "LocalCluster", "NodeStatus", "delivered", "is_wanted", "local_cluster_fixture"]
