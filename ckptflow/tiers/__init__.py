"""Where bytes live. A tier knows keys and bytes, and nothing about checkpoints."""
