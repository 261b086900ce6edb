"""Operations on a cluster: what the commands print and the console shows, as typed structs.

A module for each noun. Its functions take a started `Admin` of `dledger_client`, or an `Access` where they need other
clients too, and return structs. They print nothing, ask nobody, and know nothing of a command line or of HTTP.
"""
