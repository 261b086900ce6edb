"""Program that drives RocketMQ 5's Python client, run by the interpreter of an environment that has this client."""
