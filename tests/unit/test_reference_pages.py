"""The reference pages name everything that the code has, and nothing that it lacks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
import typer
from pydantic import BaseModel
from typer.core import TyperGroup

from ckptflow.cli import app
from ckptflow.flush import Flushing
from ckptflow.policy.failures.known import KNOWN
from ckptflow.policy.interval import DEFAULT_INTERVAL, parse_interval
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.site import FlushModel, PolicyModel, Site
from ckptflow.site.executor import (
    EndpointAllocation,
    ExecutorModel,
    KubernetesAllocation,
    LocalAllocation,
    PbsAllocation,
    SlurmAllocation,
)
from ckptflow.site.failures import FailuresModel
from ckptflow.site.tiers import TIER_KINDS, AnyTier
from ckptflow.units import parse_seconds

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
SITE_PAGE = (REFERENCE / "site-config.md").read_text()
SECTIONS = {
    "Top level": Site,
    "`[[tiers]]`": AnyTier,
    "`[executor]`": ExecutorModel,
    '`[executor.allocation]` with `provider = "local"`': LocalAllocation,
    '`[executor.allocation]` with `provider = "slurm"`': SlurmAllocation,
    '`[executor.allocation]` with `provider = "globus_compute"`': EndpointAllocation,
    '`[executor.allocation]` with `provider = "pbs"`': PbsAllocation,
    '`[executor.allocation]` with `provider = "kubernetes"`': KubernetesAllocation,
    "`[failures]`": FailuresModel,
    "`[flush]`": FlushModel,
    "`[policy]`": PolicyModel,
    **{f"`[[tiers]]` of kind `{kind}`": model for kind, model in TIER_KINDS.items()},
}
OF_EVERY_TIER = {"kind", *AnyTier.model_fields}


def rows(section: str) -> dict[str, str]:
    """Return key and default of the first table of a section."""
    text = SITE_PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = text.split("| key |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE))


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_on_site_files_names_every_key(section: str) -> None:
    model: type[BaseModel] = SECTIONS[section]
    keys = {field.alias or name for name, field in model.model_fields.items()} - {"provider"}
    if issubclass(model, AnyTier):
        keys = OF_EVERY_TIER if model is AnyTier else keys - OF_EVERY_TIER
    assert set(rows(section)) == keys


def test_the_defaults_of_the_executor_are_those_of_the_page() -> None:
    shown = {key: value.strip().strip("`") for key, value in rows("`[executor]`").items()}
    for name, field in ExecutorModel.model_fields.items():
        text, default = shown[field.alias or name], field.default
        if name == "allocation":
            assert (text, default) == ("this computer", LocalAllocation())
        elif isinstance(default, bool):
            assert text == str(default).lower()
        elif isinstance(default, float):
            assert parse_seconds(text) == default
        else:
            assert text == ("none" if default in {None, ()} else str(default))


def test_the_defaults_of_flushing_are_those_of_the_page() -> None:
    shown = {key: value.strip().strip("`") for key, value in rows("`[flush]`").items()}
    said = {key: text for key, text in shown.items() if text != "none"}
    assert FlushModel.model_validate(said) == FlushModel()
    assert FlushModel().options == Flushing()


def test_the_page_names_every_preset_of_failures_and_says_which_was_checked() -> None:
    section = SITE_PAGE.split("\n## `[failures]`\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| `\"([\w-]+)\"` \|.*\| (yes|no) \|$", section, re.MULTILINE)
    assert shown == [(name, "yes" if one.checked else "no") for name, one in KNOWN.items()]


def test_the_site_file_on_the_page_is_one() -> None:
    data = tomllib.loads(re.search(r"```toml\n(.*?)```", SITE_PAGE, re.DOTALL)[1])
    site = Site.model_validate(data)
    assert [tier.name for tier in site.tiers] == ["scratch", "disk"]


def test_the_short_forms_on_the_page_are_read() -> None:
    policy = SITE_PAGE.split("\n## `[policy]`\n")[1]
    when, what = policy.split("| `every` | saves")[1].split("| `keep` | keeps")
    for table, parse in ((when, parse_interval), (what, parse_retention)):
        forms = [form for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
                 for form in re.findall(r"`([^`]+)`", row)]  # fmt: skip
        assert len(forms) >= 4
        for form in forms:
            parse(form.strip('"') if form.startswith('"') else int(form))


def test_the_defaults_of_the_policy_are_those_of_the_page() -> None:
    shown = rows("`[policy]`")
    assert parse_interval(shown["every"].strip(" `")) == DEFAULT_INTERVAL
    assert parse_retention(int(shown["keep"])) == Retention()


def all_commands() -> dict[str, click.Command]:
    """Return each command by what is typed behind ``ckptflow``."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            found |= {f"{name} {word}": one for word, one in command.commands.items()}
        else:
            found[name] = command
    return found


def options_of(command: click.Command) -> set[str]:
    return {option for one in command.params for option in one.opts if option.startswith("--")}


def test_the_page_on_the_command_line_names_every_command_and_option() -> None:
    page = (REFERENCE / "cli.md").read_text()
    shared = {"--help", "--json", "--store", "--site"}
    lacking = set()
    for name, command in all_commands().items():
        section = re.search(
            rf"^### `ckptflow {name}\b.*?(?=^##|\Z)", page, re.DOTALL | re.MULTILINE
        )
        text = section[0] if section else ""
        lacking |= {
            f"{name} {option}" for option in options_of(command) - shared if option not in text
        }
        lacking |= set() if section else {name}
    assert lacking == set()


def test_the_page_on_the_command_line_names_nothing_else() -> None:
    page = (REFERENCE / "cli.md").read_text()
    commands = all_commands()
    known = set().union(*map(options_of, commands.values()))
    assert set(re.findall(r"`(--[a-z-]+)`", page)) <= known
    headings = re.findall(r"^### `ckptflow ([^`]+)`", page, re.MULTILINE)
    assert {one for one in headings if command_named(one.split()) is None} == set()


def command_named(words: list[str]) -> click.Command | None:
    commands = all_commands()
    return commands.get(" ".join(words[:2])) or commands.get(words[0])


def test_commands_shown_on_pages_can_be_typed() -> None:
    """Each `ckptflow ...` in a fenced block names a command and options that it has."""
    root = REFERENCE.parents[1]
    wrong = []
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```", page.read_text())
        for line in "\n".join(blocks).splitlines():
            words = line.split("#")[0].split()
            if words[:1] != ["ckptflow"]:
                continue
            command = command_named(words[1:])
            named = {word for word in words[2:] if word.startswith("--") and word != "--"}
            if command is None or not named <= options_of(command):
                wrong.append(f"{page.name}: {line}")
    assert wrong == []
