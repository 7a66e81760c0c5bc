#!/bin/bash
# Started in a pod.
export CKPTFLOW_STOP_SIGNALS=TERM,USR1,USR2
trap '' USR1 USR2 TERM

WORKERS
