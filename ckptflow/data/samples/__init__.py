"""Which samples a training loop gets, in which order, and how far it has come.

The order is a function of (seed, epoch, number of samples), so a position is one number, and to
go on from it costs the same wherever it lies. Nothing here imports torch.

The order, exactly: :mod:`ckptflow.data.samples.permutation`. How it is cut into batches:
:mod:`ckptflow.data.samples.cutting`. What is saved: :mod:`ckptflow.data.samples.position`.
"""
