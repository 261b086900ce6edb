"""Status of a broker's node: the status of its log, and the features that its group uses."""

from __future__ import annotations

import msgspec

from dledger.replica.status import NodeStatus
from dledger_base import native_part
from dledger_broker.kernel.state import BrokerState


class FeatureStatus(msgspec.Struct, frozen=True):
    """A feature that a group uses once every voter understands it.

    `since` is the log position from which it is used, None while it is not active, as far as this node has applied.
    """

    name: str
    since: int | None


class BrokerStatus(NodeStatus, frozen=True, kw_only=True):
    """The JSON of a broker's `/status`. `features` are sorted by name.

    `native_part` is the version of the native part that the node uses, `none` if Python does everything.
    """

    features: list[FeatureStatus]
    native_part: str


def with_features(status: NodeStatus, state: BrokerState) -> BrokerStatus:
    """Return a node's status with the features in its state."""
    activation = state.activation
    features = [FeatureStatus(name, activation.since.get(name)) for name in sorted(activation.kinds)]
    return BrokerStatus(**msgspec.structs.asdict(status), features=features, native_part=native_part.version())
