"""The compiled core and its sources, which the GPU kernels include too.

``_core`` is built when the package is installed and is absent where no compiler was; then
:mod:`ckptflow.data.backend` takes another implementation of the same digests.
"""
