"""Fixtures with a real Slurm cluster: a pytest plugin, for tests in any folder.

`slurm` is started when the first test asks for it, and ends with the session, however that
ends. Tests that break it in ways that others would notice take `running` of slurm_cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from slurm_cluster import SlurmCluster, running, why_not


def needs_slurm(proctrack: str = "linuxproc") -> None:
    """Skip where there can be no cluster."""
    if reason := why_not(proctrack):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def needs() -> Callable[[str], None]:
    """Call it with a proctrack to skip where there can be no such cluster."""
    return needs_slurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of four nodes for all tests of the session."""
    needs_slurm()
    with running(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster
