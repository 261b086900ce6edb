"""The unmodified C++ client continues after the loss of a leader, and loses no acknowledged message."""

from __future__ import annotations

import stories


def test_the_client_continues_after_the_permanent_loss_of_the_leader(cluster, cpp):
    stories.leader_killed_for_good(cluster, cpp(cluster.namesrv), "CppKill")
