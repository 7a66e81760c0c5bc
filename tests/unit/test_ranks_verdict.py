"""What became of ranks, and what that means for their task."""

from __future__ import annotations

from typing import Any

from ckptflow.workflow.ranks.events import (
    Ending,
    Kind,
    first_failure,
    lost,
    record_of,
    stopped,
)


def ending(rank: int, kind: Kind, reached: int | None = 5, **record: Any) -> Ending:
    return Ending(rank, kind, f"process {rank} on n1", reached, record)


def stop(rank: int, step: int) -> Ending:
    told = {"reason": "signal", "step": step, "resumed_step": 2}
    return ending(rank, "preempted", preempted=told)


def test_a_rank_that_died_is_named() -> None:
    error = lost("t", 4, [ending(2, "lost"), ending(0, "lost")], status=1, printed="Killed\n")
    assert error is not None
    assert error.rank == 2
    assert str(error) == (
        "t: rank 2 of 4 (process 2 on n1) died after step 5. All ranks were ended.\n"
        "The last that was printed:\nKilled"
    )


def test_a_rank_that_died_early() -> None:
    error = lost("t", 2, [ending(1, "lost", None)], status=1)
    assert "rank 1 of 2 (process 1 on n1) died before its first step" in str(error)


def test_what_is_raised_first_is_the_task_s_own_and_no_loss() -> None:
    endings = [ending(1, "raised"), ending(0, "lost")]
    assert lost("t", 2, endings, status=1) is None
    assert first_failure(endings) is endings[0]


def test_a_launcher_that_failed_or_was_killed() -> None:
    both = [ending(0, "finished"), ending(1, "finished")]
    assert "was killed by signal 9" in str(lost("t", 2, both, status=-9))
    assert "ended with status 3; 0 of them came" in str(lost("t", 2, [], status=3))
    assert lost("t", 2, both, status=0) is None


def test_ranks_that_never_came() -> None:
    assert "only 1 of 2 ranks came" in str(lost("t", 2, [ending(0, "finished")], status=0))


def test_all_have_stopped_and_the_least_step_counts() -> None:
    endings = [stop(1, 6), stop(0, 5)]
    assert lost("t", 2, endings, status=75) is None
    error = stopped("t", 2, endings)
    assert error is not None
    assert (error.step, error.resumed_step, error.task) == (5, 2, "t")
    assert str(error) == "t stopped on 2 of 2 ranks (signal); step 5 is saved."
    assert stopped("t", 2, [ending(0, "finished")]) is None


def test_the_record_of_all() -> None:
    endings = [
        ending(0, "finished", step=8, state_bytes=3, stored_bytes=1, failures=["x"]),
        ending(1, "finished", step=9, state_bytes=4, stored_bytes=2, failures=["y"] * 30),
    ]
    record = record_of(endings, None)
    assert (record["step"], record["state_bytes"], record["stored_bytes"]) == (8, 7, 3)
    assert record["failures"][:2] == ["rank 0: x", "rank 1: y"]
    assert record["failures"][-1] == "and 11 more failures"
    assert record_of(endings, ValueError())["step"] is None
    assert record_of([], None)["step"] is None
