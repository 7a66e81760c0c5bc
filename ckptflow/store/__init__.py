"""What a checkpoint is: how it is written, found, read back, checked and deleted."""
