"""Between checkpoints and what other programs read and write."""
