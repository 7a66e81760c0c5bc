"""``site``: which sites there are, what one is, whether it works, and how to begin with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ckptflow.cli import output
from ckptflow.cli.exit_codes import ExitCode
from ckptflow.cli.output import JsonOption
from ckptflow.cli.runs import SetOption, UserOption
from ckptflow.errors import ConfigError
from ckptflow.site import load_site, read_layers
from ckptflow.site.catalogue import Entry, copy_site, known_sites, start_user_section
from ckptflow.site.layers import Merged, parse_setting
from ckptflow.units import parse_seconds

if TYPE_CHECKING:
    from ckptflow.workflow.blocks.checking import Finding

site = typer.Typer(help="Sites: the machines that workflows run on.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of a site, or its TOML file.")]


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a site, and where it stands."""

    key: str
    value: object
    origin: str


@site.command("list")
@output.reports_errors
def list_command(*, json_output: JsonOption = False) -> None:
    """List the sites that can be named here."""
    found = known_sites()
    output.show(found, lambda console: _print_list(console, found), as_json=json_output)


@site.command("show")
@output.reports_errors
def show_command(
    name: NameArgument,
    *,
    script: Annotated[
        bool, typer.Option("--script", help="Print the batch script instead.")
    ] = False,
    parsl: Annotated[
        bool, typer.Option("--parsl", help="Print the Parsl configuration instead.")
    ] = False,
    user: UserOption = None,
    settings: SetOption = None,
    json_output: JsonOption = False,
) -> None:
    """Print what a site adds up to, and in which file and line each value stands."""
    overrides = _settings(settings)
    chosen = load_site(name, user=user, overrides=overrides, purpose="show")
    if script and parsl:
        raise ConfigError("Give --script or --parsl, not both.")
    if script or parsl:
        from ckptflow.workflow.blocks.config import build_config
        from ckptflow.workflow.blocks.scripts import batch_script

        text = batch_script(chosen) if script else repr(build_config(chosen, run_dir="RUN"))
        output.show(
            {"script" if script else "parsl": text},
            lambda console: console.print(text, soft_wrap=True),
            as_json=json_output,
        )
        return
    merged, _ = read_layers(name, user=user, overrides=overrides)
    values = list(_values(merged, merged.data, ()))
    lacking = {key: what for key, what in chosen.required.items() if not merged.get(key)}
    document = {"name": chosen.name, "values": values, "needed": lacking}
    output.show(
        document, lambda console: _print_values(console, values, lacking), as_json=json_output
    )


@site.command("check")
@output.reports_errors
def check_command(
    name: NameArgument,
    *,
    there: Annotated[
        bool, typer.Option("--there", help="Get an allocation, and look on its nodes, too.")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long --there waits, in all.")
    ] = "15min",
    user: UserOption = None,
    settings: SetOption = None,
    json_output: JsonOption = False,
) -> ExitCode:
    """Try a site out: what works from here, and with --there on a node of it.

    Without --there nothing is submitted, and what can only be seen on a node is listed. Ends
    with 1 if anything failed.
    """
    from ckptflow.workflow.blocks.checking import check_here, check_there

    wait_s = parse_seconds(timeout)
    chosen = load_site(name, user=user, overrides=_settings(settings))
    findings = check_here(chosen)
    if there:
        findings = [one for one in findings if one.verdict != "only there"]
        findings += check_there(chosen, timeout_s=wait_s)
    output.show(
        findings, lambda console: _print_findings(console, findings), as_json=json_output
    )
    failed = any(one.verdict == "failed" for one in findings)
    return ExitCode.FAILED if failed else ExitCode.OK


@site.command("init")
@output.reports_errors
def init_command(
    name: Annotated[str, typer.Argument(help="Name of a site.")],
    *,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Make a new site of that name, as a copy of this one."),
    ] = None,
    user: UserOption = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where the new site goes.")] = Path(
        "site_configs"
    ),
    json_output: JsonOption = False,
) -> None:
    """Begin with a site: write down what it needs from you, or make a new one."""
    if source is None:
        path = start_user_section(name, user)
        text = f"fill in the section of {name} in {path}, then: ckptflow site check {name}"
    else:
        path = copy_site(name, source, folder)
        text = f"change {path}, then: ckptflow site check {path}"
    output.show(
        {"path": str(path)},
        lambda console: console.print(text, soft_wrap=True),
        as_json=json_output,
    )


def _settings(settings: list[str] | None) -> dict[str, object]:
    return dict(parse_setting(text) for text in settings or ())


def _values(merged: Merged, node: Any, where: tuple[str | int, ...]) -> Iterator[Value]:
    """Yield each value; a tier is called by its name."""
    if isinstance(node, Mapping) and node:
        for key, part in node.items():
            yield from _values(merged, part, (*where, key))
    elif where == ("tiers",):
        for number, part in enumerate(node):
            yield from _values(merged, part, (*where, number))
    else:
        named = [str(part) for part in where]
        if where[:1] == ("tiers",) and len(where) > 1:
            named[1] = str(merged.data["tiers"][where[1]].get("name", where[1]))
        yield Value(".".join(named), node, str(merged.origin(where) or ""))


def _print_list(console: Console, found: list[Entry]) -> None:
    table = output.table("SITE", "NODES FROM", "WHAT", "FILE")
    for one in found:
        output.add_row(
            table,
            [one.name, one.provider, one.description or one.problem, one.path],
            style="red" if one.problem else None,
        )
    console.print(table)


def _print_values(console: Console, values: list[Value], lacking: Mapping[str, str]) -> None:
    table = output.table("KEY", "VALUE", "FROM")
    for one in values:
        output.add_row(table, [one.key, one.value, one.origin])
    for key, what in lacking.items():
        output.add_row(table, [key, "", f"needed from you: {what}"], style="red")
    console.print(table)


def _print_findings(console: Console, findings: list[Finding]) -> None:
    table = output.table("", "WHAT", "HOST", "SEEN")
    styles = {"failed": "red", "only there": "dim"}
    for one in findings:
        output.add_row(
            table,
            [one.verdict, one.what, one.host, one.detail],
            style=styles.get(one.verdict),
        )
    console.print(table)
