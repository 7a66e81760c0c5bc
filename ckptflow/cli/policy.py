"""``policy``: what the multi-level policy knows: its presets, and its surrogate made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.cli.explaining import explain
from ckptflow.cli.output import JsonOption
from ckptflow.errors import ConfigError
from ckptflow.policy.multilevel.presets import PRESETS, Aim
from ckptflow.policy.multilevel.surrogate import SHIPPED, Surrogate, save
from ckptflow.units import format_seconds

policy = typer.Typer(
    help="The multi-level policy: when to save, and to which tiers.", no_args_is_help=True
)

policy.command("explain")(explain)

_SYSTEMS_MIN = 100  # With fewer there is nothing to hold out.


@policy.command("presets")
@output.reports_errors
def presets_command(*, json_output: JsonOption = False) -> None:
    """List what a pattern can be chosen for besides efficiency."""
    output.show(list(PRESETS.values()), _print_presets, as_json=json_output)


@policy.command("train")
@output.reports_errors
def train_command(
    *,
    systems: Annotated[
        int | None, typer.Option("--systems", help="How many random systems to learn from.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the random numbers.")] = 1,
    file: Annotated[
        Path, typer.Option("--output", help="The file that gets it; that of the package.")
    ] = SHIPPED,
    json_output: JsonOption = False,
) -> None:
    """Make the surrogate of the policy anew, and say how well it does on systems held out."""
    from ckptflow.plan.train import SYSTEMS

    count = SYSTEMS if systems is None else systems
    if count < _SYSTEMS_MIN:
        raise ConfigError(
            f"It takes {_SYSTEMS_MIN} systems or more to learn from, not {count}."
        )
    _check_folder(file)
    made = _trained(count, seed)
    _replace(made, file)
    output.show(
        {"path": file, "about": made.about},
        lambda console: _print_trained(console, made, file),
        as_json=json_output,
    )


def _trained(systems: int, seed: int) -> Surrogate:
    from ckptflow.plan.train import sample, train

    with output.progress() as bar:
        task = bar.add_task("systems", total=systems)
        samples = sample(systems, seed=seed, told=lambda done: bar.update(task, completed=done))
        task = bar.add_task("training", total=None)
        return train(samples, seed=seed, told=lambda text: bar.update(task, description=text))


def _check_folder(file: Path) -> None:
    """Refuse what could not be written an hour later."""
    if not file.parent.is_dir() or file.is_dir():
        raise ConfigError(f"{file} is no file in a folder that there is.")


def _replace(made: Surrogate, file: Path) -> None:
    """Write a surrogate in one step: a task may begin meanwhile, and read it."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        save(made, partial)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"Cannot write the surrogate {file}: {error}.") from error


def _print_presets(console: Console) -> None:
    table = output.table("PRESET", "RATES", "FAR AT LEAST EVERY", "GIVES UP", "WHAT")
    for aim in PRESETS.values():
        output.add_row(table, _cells(aim))
    console.print(table)


def _cells(aim: Aim) -> list[str]:
    return [
        aim.name,
        f"times {aim.pessimism:g}" if aim.pessimism != 1 else "",
        format_seconds(aim.far_every_s) if aim.far_every_s is not None else "",
        f"{aim.give_up:.1%}" if aim.give_up else "",
        aim.about,
    ]


def _print_trained(console: Console, made: Surrogate, file: Path) -> None:
    table = output.table(
        "LEARNER", "MEAN ERROR", "99 % BELOW", numbers=("MEAN ERROR", "99 % BELOW")
    )
    for name in ("network", "trees", "both"):
        row = [name, made.about[f"{name}_mean"], made.about[f"{name}_q99"]]
        output.add_row(table, row)
    console.print(table)
    about = made.about
    console.print(
        Text(
            f"errors of the efficiency on systems that were held out; {about['patterns']} "
            f"patterns of {about['systems']} systems, trained in "
            f"{format_seconds(about['trained_s'])}"
        )
    )
    console.print(Text(f"written to {file}"), soft_wrap=True)
