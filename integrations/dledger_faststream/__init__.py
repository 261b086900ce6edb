"""FastStream broker: subscribers and publishers over the client."""
