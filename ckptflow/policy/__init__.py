"""Pure decisions: when to save, where copies go, how long they stay. Each gives its reasons.

Clocks, sizes and history are arguments, so a decision can be tested, replayed and printed.
"""
