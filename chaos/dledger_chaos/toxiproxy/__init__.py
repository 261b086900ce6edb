"""Proxies in all links of a cluster: toxiproxy's server, built once per user and started with each cluster.

`build` makes the program, and `server` runs it. `mesh` has the links of a cluster and puts toxics on them. `proxies`
joins the server and the mesh of one cluster. There is no substitute: without toxiproxy, nothing runs.
"""
