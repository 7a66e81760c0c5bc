"""Which rank a process is, as launchers tell it."""

from __future__ import annotations

import pytest

from ckptflow.checkpointer.ranks import Place, place_of
from ckptflow.errors import ConfigError

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "r7",
    "TORCHELASTIC_RESTART_COUNT": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-n1-77@1",
}  # fmt: skip
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "12", "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_RESTART_COUNT": "1",
}  # fmt: skip


def told(environ: dict[str, str], **given: object) -> tuple[int, int, bool]:
    place = place_of(**{"rank": None, "world": None, "launch": None, **given}, environ=environ)  # type: ignore[arg-type]
    return place.rank, place.world, place.one_node


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, (3, 8, False)),
        (OPEN_MPI, (1, 4, True)),
        (MPICH, (0, 2, False)),
        (SLURM, (5, 6, True)),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, (5, 6, False)),
        ({**SLURM, **TORCHRUN}, (3, 8, False)),  # Slurm started the agents of torchrun.
        ({**OPEN_MPI, **TORCHRUN}, (3, 8, False)),
        ({**SLURM, **OPEN_MPI}, (1, 4, True)),
        ({**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "4"}, (1, 4, False)),
    ],
)
def test_what_launchers_tell(environ: dict[str, str], expected: tuple[int, int, bool]) -> None:
    assert told(environ) == expected


def test_what_is_given_counts() -> None:
    assert told(TORCHRUN, rank=0, world=1) == (0, 1, True)
    assert told({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, rank=3, world=8) == (3, 8, True)


def test_the_token_is_another_one_for_another_start() -> None:
    tokens = {
        place_of(None, None, None, {**environ, **change}).launch
        for environ, change in (
            (TORCHRUN, {}),
            (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "3"}),
            (TORCHRUN, {"TORCHELASTIC_RUN_ID": "r8"}),
            (TORCHRUN, {"MASTER_PORT": "29501"}),
            (OPEN_MPI, {}),
            (OPEN_MPI, {"PMIX_NAMESPACE": "prterun-n1-78@1"}),
            (SLURM, {}),
            (SLURM, {"SLURM_RESTART_COUNT": "2"}),
            (SLURM, {"SLURM_STEP_ID": "1"}),
        )
    }
    assert len(tokens) == 9
    other_rank = {**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"}
    same = place_of(None, None, None, other_rank).launch
    assert same == place_of(None, None, None, TORCHRUN).launch
    assert place_of(0, 2, "mine", TORCHRUN) == Place(0, 2, "mine", one_node=False)


@pytest.mark.parametrize(
    ("environ", "given", "match"),
    [
        ({}, {}, r"Nothing says which rank.*Give rank= and world="),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {}, "Nothing says"),  # A batch script.
        ({"RANK": "0"}, {}, "RANK of torchrun is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE of torchrun is set, but RANK is not"),
        (
            {**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "8"},
            {},
            r"does not say clearly.*Open MPI: rank 1",
        ),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "are no numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, {}, "There is no rank 2 of 2"),
        ({}, {"rank": 0}, "go together"),
        ({}, {"rank": True, "world": 2}, "rank is a number, not True"),
        ({}, {"rank": 0, "world": 100_000}, "no rank 0 of 100000"),
    ],
)
def test_what_is_not_clear(
    environ: dict[str, str], given: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        told(environ, **given)
