"""Histories of clients, and pure checks of them: the same for simulated clients and for clients of chaos runs.

A client's history is a list of operations (`history`). A check is a function of such a list, and returns a judgement
(`findings`). It knows neither log nor nodes. The simulator's own judges, which look inside, stand beside these checks
and share no code with them. Start with `replies`.
"""
