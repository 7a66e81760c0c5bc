"""Blocks: the allocations in which workers run, how they are asked for, and how they end."""
