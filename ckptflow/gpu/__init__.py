"""Find what changed in arrays on a GPU, without copying them to the host.

Same digests, runs and ids as on the CPU, bit for bit. :class:`ckptflow.gpu.diff.DeviceDiff`
is what callers use; it launches the kernels of ``native/kernels.cu`` through a
:class:`ckptflow.gpu.device.Device`.
"""
