"""Parsl's pool of workers, lean: see `ckptflow.workflow.blocks.lean`."""

from __future__ import annotations

from ckptflow.workflow.blocks.lean import become

if __name__ in {"__main__", "__mp_main__"}:
    become("process_worker_pool", globals())
