"""The process of a node that copies checkpoints outward when their task has ended.

One for each node, user and list of tiers, started by whoever needs it first. `client` is what a
task talks to, `server` the agent; `ledger` is what it was asked for, in files, so that neither
the death of a task nor that of the agent loses a flush.
"""
