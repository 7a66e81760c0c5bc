"""``key``: make the key of a sealed store, or tell which one a file holds."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from ckptflow.cli import output
from ckptflow.cli.output import JsonOption
from ckptflow.errors import ConfigError
from ckptflow.tiers.storekey import KEY_BYTES, StoreKey

keys = typer.Typer(help="The keys of sealed stores.", no_args_is_help=True)

PathArgument = Annotated[Path, typer.Argument(help="File of the key.")]


@keys.command("new")
@output.reports_errors
def new(path: PathArgument, *, json_output: JsonOption = False) -> None:
    """Make a new key in a file that only you can read. Keep a copy: nothing else opens it."""
    path = path.expanduser().absolute()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be made: {error.strerror}.") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_bytes(KEY_BYTES).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    _show(path, as_json=json_output)


@keys.command("id")
@output.reports_errors
def identify(path: PathArgument, *, json_output: JsonOption = False) -> None:
    """Tell which key a file holds, by 16 hex digits that say nothing else about it."""
    _show(path.expanduser().absolute(), as_json=json_output)


def _show(path: Path, *, as_json: bool) -> None:
    key = StoreKey.from_file(path)
    output.show(
        {"path": str(path), "key": key.key_id},
        lambda console: console.print(f"key {key.key_id} in {path}", soft_wrap=True),
        as_json=as_json,
    )
