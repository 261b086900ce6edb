"""A rolling restart fails none of the sends of the unmodified C++ client."""

from __future__ import annotations

import stories


def test_a_rolling_restart_of_all_nodes_fails_no_send(cluster, cpp):
    stories.rolling_restart(cluster, cpp(cluster.namesrv), "CppRolling")
