"""Pure work on bytes: states to regions, digests, diffs, and back.

Nothing here opens a file or knows what a checkpoint is.
"""
