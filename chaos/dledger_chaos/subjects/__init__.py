"""Subjects that are put on trial besides the brokers: one replicated map of registers and logs, on two replicated logs.

`register_node` keeps it on `dledger.node.Node`, `pysyncobj_node` on stock PySyncObj.  Both are processes that speak the
same lines of JSON over TCP, so that one workload, one set of faults and one checker judge both.  `line_server` has the
protocol; start reading at `registers.RegisterMap`.
"""
