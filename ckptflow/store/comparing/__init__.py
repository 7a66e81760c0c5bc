"""Tell what differs between two checkpoints, reading as little of them as possible."""
