"""Proxy for clients that speak gRPC or HTTP: RocketMQ 5's own clients, scripts and browsers."""
