"""Tasks that run on several processes: one task, one attempt, one sharded lineage.

On the worker `launch` claims the attempt and starts the ranks by a launcher, and a `steward` is
told by each of them where it is and how it ended. Ranks (`member`) save and stop at the same
steps, since none goes further than the steward has let it.
``docs/design/012-multi-node-tasks.md``.
"""
