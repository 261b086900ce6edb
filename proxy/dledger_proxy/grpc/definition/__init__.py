"""The interface of RocketMQ 5: `messaging.proto`, and the modules that `make proto` generates from it."""
