"""What is known about the filesystems of fsspec: how they are opened, and how they commit.

``tests/unit/test_filesystem_tier.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from ckptflow.errors import ConfigError
from ckptflow.tiers.secrets import names_secret

HANDED_IN = "handed-in:"  # Before the address of what only the process that has it can open.
Commit: TypeAlias = Literal["move", "direct"]

# Moving is one rename: `os.rename`, posix-rename of SFTP, the rename of HDFS' name node.
_MOVES = ("file", "local", "sftp", "ssh", "hdfs", "arrow_hdfs")
# A put is visible when it is complete: HTTP PUT or the end of a multipart upload; a dictionary.
_PUTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "memory")
_LOCAL = ("file", "local")
_NOT_REPLACING = ("hdfs", "arrow_hdfs")


def innermost(fs: Any) -> str:
    """Return the name of the protocol that stores the bytes, below ``dir://``."""
    while "dir" in _protocols(fs):
        fs = fs.fs
    return _protocols(fs)[0]


def is_local(fs: Any) -> bool:
    """Tell whether it is this computer's own filesystem."""
    return innermost(fs) in _LOCAL


def commit_of(fs: Any, commit: Commit | None) -> Commit:
    """Return how a value becomes visible at once.

    Raises:
        ConfigError: it was not said and is not known for this filesystem.
    """
    if commit is not None:
        return commit
    protocol = innermost(fs)
    if protocol in _MOVES:
        return "move"
    if protocol in _PUTS:
        return "direct"
    raise ConfigError(
        f"How a value becomes visible at once on a filesystem of fsspec's {protocol!r} is not "
        f"known. Say commit = 'move' if moving a file over another is one atomic rename there, "
        f"or commit = 'direct' if a put shows nothing before it is complete. If neither is "
        f"so, it cannot hold checkpoints."
    )


def move_replaces(fs: Any) -> bool:
    """Tell whether a move may end on a name that is taken; the rename of HDFS may not."""
    return innermost(fs) not in _NOT_REPLACING


def options_of(fs: Any) -> dict[str, Any]:
    """Return the options with which ``fs`` was made, and those of what is below ``dir://``."""
    options = dict(getattr(fs, "storage_options", None) or {})
    return {**options, "below": options_of(fs.fs)} if "dir" in _protocols(fs) else options


def reopenable(fs: Any) -> bool:
    """Tell whether a protocol and a path are all that it takes to open ``fs`` again.

    So it is without options, or when all come from fsspec's own configuration files and
    environment, which another process reads too.
    """
    from fsspec.config import apply_config

    options = getattr(fs, "storage_options", None)
    if "dir" in _protocols(fs):
        return reopenable(fs.fs)
    return bool(options == apply_config(type(fs), {}))


def open_filesystem(spec: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of ``spec["address"]``, and the path on it.

    Raises:
        ConfigError: there can be none, or fsspec or what it needs is not installed.
    """
    if spec["address"].startswith(HANDED_IN):
        raise ConfigError(
            f"Tier {spec['name']!r} is a filesystem that was handed in with options of its "
            f"own; another process cannot open it, since options may be secret. Put them into "
            f"fsspec's configuration (~/.config/fsspec, or FSSPEC_… in the environment)."
        )
    address = check_address(spec["address"])
    options = check_options(spec.get("options") or {})
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigError(
            f"Tier {spec['name']!r} needs fsspec: pip install ckptflow[fsspec]."
        ) from error
    try:
        fs, path = url_to_fs(address, **options)
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(f"Tier {spec['name']!r}: cannot open {address!r}: {error}") from error
    return fs, str(path)


def check_address(address: str) -> str:
    """Return ``address`` if it is ``protocol://path`` without a password and not chained.

    Raises:
        ConfigError: it is not; a password in it is not repeated.
    """
    protocol, sign, rest = address.partition("://")
    user = rest.split("/", 1)[0].rpartition("@")[0]
    if ":" in user:
        raise ConfigError(
            f"An address of {protocol}:// has a password in it. Secrets do not belong there; "
            f"put it into fsspec's configuration (~/.config/fsspec)."
        )
    if not sign or not protocol or "::" in address:
        raise ConfigError(f"{address!r} is no address: write protocol://path, not chained.")
    return address


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` if none of them is a secret by its name.

    Raises:
        ConfigError: one is; its value is not repeated.
    """
    secret = [name for name in options if names_secret(name)]
    if secret:
        raise ConfigError(
            f"The options {', '.join(map(repr, secret))} would hold secrets, which do not "
            f"belong into a site file; put them into fsspec's configuration "
            f"(~/.config/fsspec, or FSSPEC_… in the environment)."
        )
    return dict(options)


def _protocols(fs: Any) -> tuple[str, ...]:
    protocol = fs.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
