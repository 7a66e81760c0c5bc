"""Pure work on bytes: states to regions, digests, diffs, and back; and the order of samples.

Nothing here opens a file or knows what a checkpoint is.
"""

from ckptflow.data.samples.loader import ResumableLoader
from ckptflow.data.samples.permutation import sample_seed
from ckptflow.data.samples.position import fingerprint
from ckptflow.data.samples.randomness import SampleIndex, SeededDataset
from ckptflow.data.samples.sampler import ResumableSampler

__all__ = [
    "ResumableLoader",
    "ResumableSampler",
    "SampleIndex",
    "SeededDataset",
    "fingerprint",
    "sample_seed",
]
