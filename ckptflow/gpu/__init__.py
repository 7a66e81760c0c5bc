"""Find what changed in arrays on a GPU, without copying them to the host.

Same digests, chunks, runs and ids as on the CPU, bit for bit. Saves use
:class:`ckptflow.gpu.fleet.Fleet`, which captures what changed since the snapshot before;
:class:`ckptflow.gpu.diff.DeviceDiff` knows cells and their first occurrences, too. Both launch
the kernels of ``native/kernels.cu`` through a :class:`ckptflow.gpu.device.Device`.
"""
