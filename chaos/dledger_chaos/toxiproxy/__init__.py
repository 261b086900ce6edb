"""The proxy in every link: toxiproxy's server, built once per user, run with each cluster, and driven as a mesh.

`build` makes the program, `server` runs it, `mesh` knows the links of a cluster and spoils them.  Nothing here stands
in for the real server: where it cannot be built, nothing runs.
"""
