"""Level 2: redundancy sets across nodes, made of stripes of whole objects."""
