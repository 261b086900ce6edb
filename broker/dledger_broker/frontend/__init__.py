"""Frontend of the broker: from clients, other nodes and name servers to the handlers of requests, and back.

`connection.py` turns bytes into requests and collects answers into one write, `listener.py` owns the client port and
all connections; neither knows what a request means. `dispatch.py` hands requests to the handlers of their codes,
`forwarding.py` passes on to the leader what needs it. `registration.py` keeps name servers informed; `http.py` serves
health, status and the metrics of `exporter.py`. Start with `dispatch.py`.
"""
