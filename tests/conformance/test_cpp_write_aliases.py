"""The unmodified C++ client fails no send to a topic with write aliases when the leader is killed and stays away.

One thread sends. With several threads some sends fail all the same (docs/compatibility.md).
"""

from __future__ import annotations

import alias_stories


def test_no_send_of_a_thread_fails_after_the_permanent_loss_of_the_leader(cluster, cpp):
    alias_stories.leader_killed_for_good(cluster, cpp(cluster.namesrv), "CppAliases", senders=1)
