"""What brokers and name servers share as servers: the HTTP port, memory of requests that have not arrived, TLS.

A component that listens is built from these parts; what a connection does with its bytes is its own. Nothing here knows
topics, routes or the log. Start reading at `doorman`, through which connections come to ports with TLS.
"""
