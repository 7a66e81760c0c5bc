"""Parsl's programs on nodes, started without what only the main process of a workflow needs.

With ``import parsl`` come its batch systems, its database and its executors, and the clients
that these use, if they are installed: Kubernetes, AWS, SQLAlchemy, the SDK of Globus Compute.
Every worker on every node would load them, from a file system that all of them share. They are
optional to Parsl, so here it is told that they are not there. Tasks can import them all the
same; only Parsl itself, inside a task, cannot use them. ``tests/unit/test_lean.py``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import MutableMapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LEFT_OUT = frozenset({"azure", "boto3", "globus_compute_sdk", "kubernetes", "sqlalchemy"})

_PROGRAMS = "parsl.executors.high_throughput"


class _NotForParsl(MetaPathFinder):
    """Says to Parsl, and to nobody else, that some packages are not installed."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in LEFT_OUT and _importer().startswith("parsl."):
            raise ModuleNotFoundError(f"{name} is left out on nodes", name=name)
        return None


def _importer() -> str:
    """Return the name of the module that imports something at this moment."""
    frame = sys._getframe(2)  # noqa: SLF001  Not this function, nor the finder.
    while frame.f_back is not None and _is_import(frame.f_globals):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def _is_import(namespace: MutableMapping[str, Any]) -> bool:
    return str(namespace.get("__name__")).startswith("importlib.")


def leave_out() -> None:
    """From now on say to Parsl that what it can do without is not there."""
    if not any(isinstance(one, _NotForParsl) for one in sys.meta_path):
        sys.meta_path.insert(0, _NotForParsl())


def become(program: str, namespace: dict[str, Any]) -> None:
    """Let the main module be a program of Parsl, which leaves out what it can do without.

    Args:
        program: its name, such as ``interchange``.
        namespace: of the main module. Processes that multiprocessing spawns have it as main
            module again, and so are lean, too.
    """
    leave_out()
    name = f"{_PROGRAMS}.{program}"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    code = spec.loader.get_code(name)
    assert code is not None
    exec(code, namespace)  # noqa: S102  As ``python -m`` would.
