"""What every test gets: a folder, a home and an environment of its own, and values.

``SLOW=1`` or ``--slow`` adds the tests marked slow. Hypothesis runs the same examples every
time, so that a red run is red again tomorrow.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

pytest_plugins = [
    "witness",  # Reads again, from the format page alone, what tests write.
    "object_stores",  # A real S3 server, started when the first test asks for it.
    "private_slurm",  # A real Slurm cluster, likewise.
]

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("ci")
    if hasattr(config, "workerinput"):
        os.register_at_fork(after_in_child=_end_of_pipes(_pipes()))


def _pipes() -> list[int]:
    """The pipes that a worker of pytest-xdist talks to the main process by."""
    numbers = [int(entry.name) for entry in Path("/dev/fd").iterdir()]
    return [n for n in numbers if n > 2 and _is_pipe(n)]


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:
        return False  # It was the listing's own.


def _end_of_pipes(numbers: list[int]) -> Callable[[], None]:
    """Close them in forked processes, which else hide that a worker crashed."""

    def close() -> None:
        for number in numbers:
            with suppress(OSError):
                os.close(number)

    return close


@pytest.hookimpl(tryfirst=True)  # Before pytest-xdist reads the groups.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if _slow(config):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with SLOW=1 or --slow"))


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Tell whether a test uses a fixture of its module; each process would make its own."""
    known = getattr(item, "_fixtureinfo", None)
    found = known.name2fixturedefs.values() if known else ()
    return any(one.scope == "module" for definitions in found for one in definitions)


def _slow(config: pytest.Config) -> bool:
    return bool(config.getoption("--slow")) or os.environ.get("SLOW", "") not in {"", "0"}


_SETTINGS = ("CKPTFLOW_", "SLURM_", "PARSL_", "XDG_", "AWS_", "GOOGLE_", "AZURE_")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder, a home and an environment that nothing else uses.

    Parsl and the command line write below the current folder; a scheduler's variables, or
    the user's own settings, must not decide a test.
    """
    home = tmp_path / "home"
    home.mkdir()
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    for name in os.environ:
        if name.startswith(_SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setenv(
        "AWS_EC2_METADATA_DISABLED", "true"
    )  # Nobody asks the network who we are.


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder with pyproject.toml in it."""
    return REPOSITORY


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that gives the same numbers in every run."""
    return np.random.default_rng(20_250_101)


@pytest.fixture
def arrays(rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
    """A small state: something dense, something constant, something of every odd shape."""
    return {
        "dense": rng.standard_normal((64, 33)),
        "constant": np.full(10_000, 7, dtype=np.int32),
        "scalar": np.array(2.5),
        "empty": np.empty((0, 3), dtype=np.float32),
        "flags": rng.integers(0, 2, 1_001).astype(np.bool_),
    }
