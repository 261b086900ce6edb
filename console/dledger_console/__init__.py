"""Web console of a cluster: pages that show it and change it, and the same as JSON.

`server.py` is the HTTP server, `views/` answers each page from the operations of `dledger_admin`, `templates/` and
`static/` show it. Nothing here computes what an operation could return. Start reading in `server.py`.
"""
