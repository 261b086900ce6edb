"""Each request code keeps the right that it requires where access control is on.

Codes that are not listed are for administrators.
"""

from __future__ import annotations

from pathlib import Path

from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.rights import ADMIN
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.codes import request_code_name
from tests.broker.served_broker import make_served_broker
from tests.recorded.golden_files import compare


def test_rights_are_those_that_were_recorded() -> None:
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    routes = make_served_broker(config, BrokerInMemory()).service.requests._table
    open_to_others = {code: route.rights for code, route in routes.items() if route.rights is not ADMIN}
    assert open_to_others.keys() < routes.keys()
    compare(
        "rights",
        (
            f"{code} {request_code_name(code)}: {'; '.join(map(str, rights)) or 'every account'}"
            for code, rights in sorted(open_to_others.items())
        ),
    )
