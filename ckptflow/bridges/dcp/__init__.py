"""Storage for ``torch.distributed.checkpoint``: its checkpoints are ours.

`ckptflow.torch` is the public face. See ``docs/design/008-dcp.md``.
"""
