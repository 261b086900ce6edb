"""Status of a broker's node: that of its log, and which features its group uses."""

from __future__ import annotations

import msgspec

from dledger import native_part
from dledger.replica.status import NodeStatus
from dledger_broker.kernel.state import BrokerState


class FeatureStatus(msgspec.Struct, frozen=True):
    """A feature that a group uses once every voter understands it: from position `since` of the log on, as far as this
    node has applied that; None until then.
    """

    name: str
    since: int | None


class BrokerStatus(NodeStatus, frozen=True, kw_only=True):
    """The JSON of a broker's `/status`; `features` by name.

    `native_part` is the version of the one that the node uses, `none` where Python does everything.
    """

    features: list[FeatureStatus]
    native_part: str


def with_features(status: NodeStatus, state: BrokerState) -> BrokerStatus:
    """A node's status, and what its state says of features."""
    activation = state.activation
    features = [FeatureStatus(name, activation.since.get(name)) for name in sorted(activation.kinds)]
    return BrokerStatus(**msgspec.structs.asdict(status), features=features, native_part=native_part.version())
