"""What is before a replica: opening a node's directory, questions to peers of a node that may not start, and rescue."""
