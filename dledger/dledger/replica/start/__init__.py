"""Start of a replica: opening of a node's directory, questions to peers if the node may not start, and rescue."""
