"""Linearizability of histories: pure, without I/O, of no particular system.

`checker` searches for an order in which the operations (`calls`) of one key could have happened one at a time; `models`
says what a register and a log answer; `shortest` cuts a history that has none down to what shows it. Operations come
here by key: keys are independent objects, and a history is linearizable if each key's is (Herlihy and Wing,
"Linearizability: a correctness condition for concurrent objects", 1990, theorem 1).
"""

from .calls import UNKNOWN, Call
from .checker import STEP_LIMIT, Linearity, check_linearizable
from .models import LOG, REGISTER, Model
from .shortest import shortest

__all__ = ["LOG", "REGISTER", "STEP_LIMIT", "UNKNOWN", "Call", "Linearity", "Model", "check_linearizable", "shortest"]
