"""Linearizability checker for histories of any system, without I/O.

- `checker` searches for an order in which the operations (`calls`) of one key could have happened one at a time.
- `models` has the answers of a register and of a log.
- `shortest` cuts a history without such an order down to the operations that show it.

Each key is checked by itself, because keys are independent objects. A history is linearizable if the history of each
key is (Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects", 1990, theorem 1).
"""

from .calls import UNKNOWN, Call
from .checker import STEP_LIMIT, Linearity, check_linearizable
from .models import LOG, REGISTER, Model
from .shortest import shortest

__all__ = ["LOG", "REGISTER", "STEP_LIMIT", "UNKNOWN", "Call", "Linearity", "Model", "check_linearizable", "shortest"]
