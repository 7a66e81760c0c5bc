"""Simulate a pattern, train a classifier that sees through it, draw what came out; per seed.

Every seed grows a Gray-Scott pattern (``gray_scott.py``); a classifier of handwritten digits is
trained on images dimmed by patches of that pattern (``digits.py``); one last task joins all
seeds in two figures and ``result.json`` (``report.py``) with a digest of every final array.

    python workflows/sim_train_analyse.py --site local --name first --out results
    ckptflow run workflows/sim_train_analyse.py --site local --name first -- --out results

Interrupt it or kill it at any moment and run the same line again: finished tasks are
remembered, started ones go on from their newest checkpoint, and ``result.json`` gets the same
bytes as in an undisturbed run. ``ckptflow demo`` does exactly this, and
``tests/process/test_demo.py`` runs that.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import ckptflow as cf

HERE = str(Path(__file__).resolve().parent)


@cf.python_app(key=("seed",), every=500, keep="all")
def simulate(seed: int, steps: int, size: int, arrays: str, ckpt: Any) -> Any:
    """Grow one pattern; return a reference to its final state, never the arrays."""
    import importlib

    import gray_scott

    xp = importlib.import_module(arrays)
    chemistry = gray_scott.Chemistry()
    state = ckpt.restore(gray_scott.initial_state(seed, size=size, frames=40, xp=xp))
    scratch = gray_scott.Scratch(state, xp)
    while state["step"] < steps:
        gray_scott.advance(state, scratch, chemistry)
        gray_scott.record(state, steps)
        ckpt.step(state["step"], state)
    return ckpt.export(state)


@cf.python_app(key=("seed",), every=1000, keep="all")
def train(seed: int, steps: int, simulated: Any, ckpt: Any) -> Any:
    """Train one classifier on digits seen through a pattern; return a reference to it."""
    import digits

    import ckptflow

    digits.use_one_thread()
    data = digits.load()
    grains = digits.texture(ckptflow.load(simulated)["v"][1:-1, 1:-1])
    state = ckpt.restore(digits.initial_state(seed, data, steps=steps))
    while state["step"] < steps:
        digits.advance(state, data, grains)
        ckpt.step(state["step"], state)
    return ckpt.export(state)


@cf.python_app(key=("seeds",))
def analyse(seeds: list[int], out: str, inputs: list[Any]) -> None:
    """Write the figures and ``result.json`` of all seeds into ``out``.

    ``inputs``, Parsl's name for a list of futures to wait for, holds the references of all
    simulations, then those of all trainings. Too short to need a checkpoint.
    """
    from pathlib import Path

    import report

    import ckptflow

    states = [ckptflow.load(reference) for reference in inputs]
    simulations = dict(zip(seeds, states[: len(seeds)], strict=True))
    trainings = dict(zip(seeds, states[len(seeds) :], strict=True))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    report.draw_patterns(simulations, folder / report.FIGURES[0])
    report.draw_training(simulations, trainings, folder / report.FIGURES[1])
    (folder / report.RESULT).write_text(report.result(simulations, trainings))


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow, or go on with it; print where the results are."""
    options = _parser().parse_args(arguments)
    out = options.out.resolve()
    # The tasks import the modules beside this file, wherever their worker runs.
    sys.path.insert(0, HERE)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *([inherited] if inherited else [])])
    seeds = list(range(options.seeds))
    with cf.run(options.name, site=options.site, store=options.store or out / "store") as run:
        simulated = [
            simulate(seed, options.sim_steps, options.size, options.arrays) for seed in seeds
        ]
        trained = [
            train(seed, options.train_steps, pattern)
            for seed, pattern in zip(seeds, simulated, strict=True)
        ]
        analyse(seeds, str(out), inputs=[*simulated, *trained]).result()
    print(run.summary())
    print(f"{out}/result.json")
    return run.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", default="local", help="name of a site, or its TOML file")
    parser.add_argument("--name", default="sim-train-analyse", help="name of the run")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where results go")
    parser.add_argument("--store", type=Path, help="folder of the checkpoints (OUT/store)")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds fan out")
    parser.add_argument("--sim-steps", type=int, default=8000, help="steps of a simulation")
    parser.add_argument("--train-steps", type=int, default=16000, help="steps of a training")
    parser.add_argument("--size", type=int, default=256, help="cells along a side of the grid")
    parser.add_argument(
        "--arrays", choices=("numpy", "cupy"), default="numpy", help="who computes the pattern"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
