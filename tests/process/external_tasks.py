"""Apps around `external_code.py`, in all its ways of writing; for tests, and a script itself.

As a script it is one life of a workflow that is killed again and again:
``external_tasks.py STORE STEPS`` runs three tasks, and prints the digests of what they made.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import ckptflow as cf

PROGRAM = str(Path(__file__).with_name("external_code.py"))
CODE = f"{shlex.quote(sys.executable)} -S -E {shlex.quote(PROGRAM)}"
STABLE_S = 0.1


@cf.bash_app(
    key=("name",),
    watch="restart.*",
    ends_with=b"the end\n",
    with_files=("log",),
    restart_arg="-r {path}",
    stable_s=STABLE_S,
)
def pieces(name: str, arguments: str, ckpt: Any) -> str:
    """Writes straight to the final name; its last bytes tell that it is whole."""
    return f"{CODE} {arguments} {ckpt.restart_arg()}"


@cf.bash_app(
    key=("name",), watch="restart.*", with_files=("log",), stable_s=60, restart_arg="-r {name}"
)
def renames(name: str, arguments: str, ckpt: Any) -> str:
    """Renames a whole file; nothing else is needed."""
    return f"{CODE} --rename {arguments} $CKPTFLOW_RESTART_ARG"


@cf.bash_app(
    key=("name",),
    watch="state.cpt",
    with_files=("log", "state.cpt.prev*"),
    valid=f"{CODE} --check {{path}}",
    stable_s=STABLE_S,
)
def one_file(name: str, arguments: str, ckpt: Any) -> str:
    """Writes over the same file; a command tells whether it is sound."""
    restart = "" if ckpt.restart is None else f"-r {shlex.quote(ckpt.restart)}"
    return f"{CODE} --name state.cpt {arguments} {restart}"


WAYS = {"pieces": pieces, "renames": renames, "one_file": one_file}


def work(store: Path, task: str) -> Path:
    """Return the folder of a task."""
    return store / "runs" / "exp" / "work" / task


def results(folder: Path) -> dict[str, str]:
    """Return the digests of what the code has made in the end."""
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("final", "log")
    }


def main() -> None:
    """Run one life."""
    store, steps = Path(sys.argv[1]), sys.argv[2]
    pace = f"--steps {steps} --every 5 --step-s 0.005 --piece 1000 --pause 0.001"
    ways = {
        "pieces": pace,
        "renames": f"{pace} --keep-previous",
        "one_file": f"{pace} --in-place",
    }
    with cf.run("exp", site="local_threads", store=store, overrides={"executor.workers": 3}):
        futures = [WAYS[way]("a", arguments) for way, arguments in ways.items()]
        assert [future.result() for future in futures] == [0, 0, 0]
    made = {way: results(work(store, f"{way}-name=a")) for way in ways}
    print(json.dumps(made, sort_keys=True))


if __name__ == "__main__":
    main()
