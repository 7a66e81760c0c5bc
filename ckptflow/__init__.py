"""Checkpoint and restart for HPC workflows: incremental, verified, multi-level, on Parsl."""
