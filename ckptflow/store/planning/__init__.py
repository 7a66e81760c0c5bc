"""Plan a checkpoint before a byte is written: what changed, how it is stored, where it lies."""
