"""Seeing what a run does and did: status, logs, why, report, metrics.

Facts are read in two places and changed in none: `events` reads the journal of the run and
what its attempts told on their way (`ckptflow.workflow.trail`), `facts` reads attempts and
checkpoints from the store. `story` makes one model of both, and is pure; all that is shown is
made from that.
"""
