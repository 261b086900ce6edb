"""Subjects: one replicated map of registers and logs, on this project's replicated log and on stock PySyncObj.

Start reading at `registers.RegisterMap`. `chaos/README.md` lists the modules.
"""
