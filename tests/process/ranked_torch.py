"""A rank of torchrun in a bash app; in torchrun's first life rank 1 is killed in step 4.

All lives share one store of torch's. Without a prefix gloo finds there, now and then, where a
rank of the life before has listened, and cannot connect.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist

import ckptflow

with ckptflow.attach(replicated=["i", "w"]) as ckpt:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = dist.PrefixStore(life, dist.TCPStore(host, port, is_master=False))
    dist.init_process_group("gloo", store=store, rank=ckpt.rank, world_size=ckpt.world)
    state = ckpt.restore({"i": 0, "w": torch.zeros(100)})
    while state["i"] < int(sys.argv[1]):
        part = torch.full((100,), float(state["i"] + 10 * ckpt.rank))
        dist.all_reduce(part)
        state["w"] += part
        state["i"] += 1
        if life == "0" and ckpt.rank == 1 and state["i"] == 4:
            ckpt.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        ckpt.step(state["i"], state)
    ckpt.wait()
    dist.destroy_process_group()
    words = ckpt.rank, ckpt.attempt, ckpt.restored_step, float(state["w"][0])
    print("torch", *words, file=sys.stderr)
