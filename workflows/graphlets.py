"""Count the graphlet degree vectors of several graphs, one task each, and compare their totals.

The state of a task is an array of counters, 73 orbits by as many vertices (``orbits.py``),
that its roots move through: between two checkpoints, windows of it change. The graphs are
made anew from their seed (``graphs.py``). One last task checks that all orbits of a graphlet
agree on how many there are, and writes ``result.json`` with a digest of the counters.

    python workflows/graphlets.py --site local --name first --out results
    ckptflow run workflows/graphlets.py --site local --name first -- --out results

Interrupt it or kill it at any moment and run the same line again: it goes on after the newest
checkpoints, and ``result.json`` gets the same bytes as in an undisturbed run.
``tests/process/test_graphlets.py`` does that.

Without a run, `snapshots` gives the counters as the checkpoints of a graph would hold them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from graphs import GRAPHS, Csr
from orbits import Counts, count, quanta, zero_counts

import ckptflow as cf

__all__ = ["GRAPHS", "Csr", "count", "quanta", "snapshots", "zero_counts"]

HERE = str(Path(__file__).resolve().parent)


def snapshots(name: str, vertices: int, n_checkpoints: int, seed: int = 0) -> Iterator[Counts]:
    """Yield the counters of a graph after each of ``n_checkpoints`` equal parts of the work.

    It is the same array each time, uint32 (73, vertices): who wants to keep one copies it.
    """
    csr = GRAPHS[name](vertices, seed)
    counts = zero_counts(vertices)
    for first, last in pairwise(quanta(csr, n_checkpoints).tolist()):
        count(csr, counts, first, last)
        yield counts


@cf.python_app(key=("graph", "vertices", "seed"), every=1, keep="all")
def count_graph(graph: str, vertices: int, seed: int, parts: int, ckpt: Any) -> Any:
    """Count all graphlets of one graph; return a reference to the counters."""
    import graphs
    import orbits

    csr = graphs.GRAPHS[graph](vertices, seed)
    state = ckpt.restore({"next_root": 0, "found": 0, "counts": orbits.zero_counts(vertices)})
    for end in orbits.quanta(csr, parts).tolist():
        if end > state["next_root"]:
            state["found"] += orbits.count(csr, state["counts"], state["next_root"], end)
            state["next_root"] = end
            ckpt.step(end, state)
    return ckpt.export(state)


@cf.python_app(key=())
def summarise(graphs: list[str], out: str, inputs: list[Any]) -> None:
    """Check the counters of all graphs and write ``result.json`` into the folder ``out``.

    ``inputs``, Parsl's name for a list of futures to wait for, holds their references. Too
    short to need a checkpoint.
    """
    import hashlib
    import json
    from pathlib import Path

    import orbits

    import ckptflow

    result = {}
    for graph, reference in zip(graphs, inputs, strict=True):
        state = ckptflow.load(reference)
        counts, totals = state["counts"], orbits.graphlet_totals(state["counts"])
        if sum(totals) != state["found"]:
            raise ValueError(
                f"The counters of {graph!r} hold {sum(totals)} graphlets, but "
                f"{state['found']} were found."
            )
        result[graph] = {
            "vertices": counts.shape[1],
            "graphlets": totals,
            "top_orbits": orbits.top_orbits(counts),
            "sha256": hashlib.sha256(counts.tobytes()).hexdigest(),
        }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow, or go on with it; print where the result is."""
    options = _parser().parse_args(arguments)
    out = options.out.resolve()
    # The tasks import the modules beside this file, wherever their worker runs.
    sys.path.insert(0, HERE)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *([inherited] if inherited else [])])
    with cf.run(options.name, site=options.site, store=options.store or out / "store") as run:
        counted = [
            count_graph(graph, options.vertices, options.seed, options.parts)
            for graph in options.graphs
        ]
        summarise(options.graphs, str(out), inputs=counted).result()
    print(run.summary())
    print(f"{out}/result.json")
    return run.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", default="local", help="name of a site, or its TOML file")
    parser.add_argument("--name", default="graphlets", help="name of the run")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where results go")
    parser.add_argument("--store", type=Path, help="folder of the checkpoints (OUT/store)")
    parser.add_argument(
        "--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS), help="which graphs"
    )
    parser.add_argument("--vertices", type=int, default=1 << 17, help="vertices of each graph")
    parser.add_argument("--parts", type=int, default=10, help="checkpoints of each graph")
    parser.add_argument("--seed", type=int, default=0, help="seed of the graphs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
