"""Workflows on Parsl: apps that checkpoint, runs that restart, and what keeps both honest."""
