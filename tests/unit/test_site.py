"""Site files: strict, and every complaint names the file and the line."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.errors import CheckpointError, ConfigError, CorruptionError, NotFoundError
from ckptflow.site import Site, load, load_site
from ckptflow.site.finding import find_site, line_of
from ckptflow.site.tiers import MemoryModel
from ckptflow.store.redundancy.tier import RedundantTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.opening import open_store
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.shared_memory import SharedMemoryTier

GOOD = """\
description = "a machine"          # 1
run_dir = "runs"

[[tiers]]                          # 4
kind = "memory"
name = "ram"
level = 0
capacity = "1 GiB"

[[tiers]]                          # 10
kind = "posix"
name = "pfs"
path = "store"
level = 3

[executor]                         # 16
workers = 4
walltime = "2h"
margin = "2min"

[policy]                           # 21
every = "5min"
keep = 3
flush_every = { pfs = 5 }

[policies.short]                   # 26
every = 10
"""


def write(folder: Path, text: str, name: str = "cluster.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    site = load_site(write(tmp_path, GOOD))
    assert site.name == "cluster"
    assert site.executor.walltime_s == 7200.0
    assert site.executor.margin_s == 120.0
    assert site.tiers[0].capacity_bytes == 1 << 30
    assert (site.policy.every, site.policies["short"].every) == ("5min", 10)
    ram, pfs = site.open_tiers()
    assert isinstance(ram, MemoryTier)
    assert isinstance(pfs, PosixTier)
    assert (ram.level, pfs.level, pfs.name) == (0, 3, "pfs")


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("workers = 4", "worker = 4", 17, "executor.worker: unknown key"),
        ("workers = 4", "workers = 0", 17, "greater than or equal to 1"),
        ("workers = 4", 'workers = "many"', 17, "valid integer"),
        ('walltime = "2h"', 'walltime = "2 parsec"', 18, "parsec"),
        ('walltime = "2h"', 'walltime = "1min"', 16, "must be longer than twice the margin"),
        ('capacity = "1 GiB"', 'capacity = "1 GHz"', 8, "GHz"),
        ('capacity = "1 GiB"', 'capacity = "1 s"', 8, "size"),
        ('name = "pfs"', 'name = "ram"', None, "two tiers have the name 'ram'"),
        ("pfs = 5", "nvme = 5", None, "flush_every names 'nvme', which is no tier"),
        ("keep = 3", "keep = { nvme = 1 }", None, "keep names 'nvme', which is no tier"),
        ("keep = 3", 'keep = { pfs = "some" }', 23, "does not say what to keep"),
        ('every = "5min"', 'every = "sometimes"', 22, "sometimes"),
        ("keep = 3", "keep = -3", 23, "keep"),
        ("every = 10", "evry = 10", 27, "policies.short.evry: unknown key"),
        ("keep = 3", 'capture = "fast"', 23, "capture is one of auto, copy, diff-first, lazy"),
        (
            'kind = "memory"',
            'kind = "tape"',
            5,
            "there is no 'tape'; there is 'posix', 'memory'",
        ),
        ('path = "store"', "", 10, "path: Field required"),
        ("[executor] ", "[exekutor] ", 16, "exekutor: unknown key"),
        ("level = 3", "level = = 3", 14, "not TOML"),
    ],
)
def test_a_mistake_names_its_line(
    tmp_path: Path, old: str, new: str, line: int | None, text: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    place = f"{path}:{line}: " if line else f"{path}: "
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert str(caught.value).startswith(place)
    assert text in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("workers", "worker").replace("keep", "kept"))
    with pytest.raises(ConfigError, match=r"worker: unknown key\.\n.*kept: unknown key"):
        load_site(path)


def test_overrides_reach_into_tables_and_lists(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    changes = {"executor.workers": 7, "tiers.1.path": "elsewhere", "policies.short.keep": 1}
    site = load_site(path, overrides=changes)
    assert site.executor.workers == 7
    assert site.tiers[1].path == Path("elsewhere")
    assert site.policies["short"].keep == 1
    again = load_site(site, overrides={"executor.walltime": "3h"})
    assert (again.executor.walltime_s, again.executor.workers) == (10800.0, 7)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("executor.wrkers", "unknown key"),
        ("tiers.9.path", "the site has no 'tiers.9'"),
        ("name.first", "'name' is not a table"),
        ("name.first.letter", "the site has no 'name.first'"),
    ],
)
def test_an_override_that_fits_nothing(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_site(write(tmp_path, GOOD), overrides={key: 1})


def test_names_are_looked_up_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    extra = tmp_path / "extra"
    extra.mkdir()
    monkeypatch.setenv("CKPTFLOW_SITES", str(extra))
    write(extra, GOOD, "local.toml")
    assert find_site("local") == extra / "local.toml"
    (tmp_path / "site_configs").mkdir()
    write(tmp_path / "site_configs", GOOD, "local.toml")
    assert find_site("local") == tmp_path / "site_configs" / "local.toml"


@pytest.mark.parametrize("name", ["local", "local_threads"])
def test_shipped_sites_are_found_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site = load_site(name)
    assert site.name == name
    assert site.runs_folder == tmp_path / "ckptflow-store" / "runs"


def test_a_name_that_nobody_knows_lists_those_that_exist() -> None:
    with pytest.raises(
        ConfigError, match=r"no site 'locl'\. Known: .*local, local_threads.*Looked"
    ):
        load_site("locl")
    with pytest.raises(ConfigError, match=r"no site file .*nowhere\.toml"):
        load_site("nowhere.toml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"Cannot read site file .*binary\.toml"):
        load_site(path)


def test_a_store_replaces_the_tiers_and_takes_the_runs_with_it(tmp_path: Path) -> None:
    site = load_site(write(tmp_path, GOOD)).with_store(tmp_path / "mine")
    assert [tier.path for tier in site.tiers] == [tmp_path / "mine"]
    assert site.runs_folder == tmp_path / "mine" / "runs"
    assert site.policy.flush_every == {}


def test_what_each_tier_keeps(tmp_path: Path) -> None:
    keep = 'keep = { ram = 1, pfs = "newest=3,bytes=2GB" }'
    site = load_site(write(tmp_path, GOOD.replace("keep = 3", keep)))
    assert site.policy.keep == {"ram": 1, "pfs": "newest=3,bytes=2GB"}
    assert site.with_store(tmp_path / "mine").policy.keep is None


def test_memory_tiers_of_one_name_are_one() -> None:
    model = MemoryModel(kind="memory", name="test-site-one", level=0)
    threads = {"kind": "threads"}
    sites = [Site(name=name, tiers=(model,), executor=threads) for name in "ab"]  # type: ignore[arg-type]
    assert sites[0].open_tiers() == sites[1].open_tiers()


def test_workers_in_processes_need_a_tier_that_outlives_them() -> None:
    model = MemoryModel(kind="memory", name="ram", level=0)
    with pytest.raises(ValueError, match="give the site a tier outside of memory"):
        Site(name="a", tiers=(model,))


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (("tiers", 1, "path"), 13),
        (("tiers", 0), 4),
        (("executor", "nothing"), 16),
        (("policy", "flush_every", "pfs"), 24),
        (("policies", "short", "every"), 27),
        (("description",), 1),
        (("nothing",), None),
    ],
)
def test_lines_are_found(where: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(GOOD, where) == line


def test_an_export_loads_what_was_exported(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, run="exp", task="sim") as ckpt:
        state = {"step": 3, "x": np.arange(5.0)}
        ckpt.save(3, state)
        export = pickle.loads(pickle.dumps(ckpt.export(state)))
    loaded = load(export)
    assert loaded["step"] == 3
    assert np.array_equal(loaded["x"], state["x"])
    target = {"step": 0, "x": np.zeros(5)}
    kept = target["x"]
    assert load(export, into=target)["x"] is kept
    assert np.array_equal(kept, state["x"])


def test_an_export_that_is_gone_or_was_replaced_says_so(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, run="exp", task="sim") as ckpt:
        ckpt.save(3, {"x": 1.0})
        export = ckpt.export({"x": 1.0})
    with pytest.raises(CorruptionError, match="another root than was exported"):
        load(replace(export, root="f" * 32))
    with pytest.raises(NotFoundError, match="4"):
        load(replace(export, step=4))


def test_a_tier_that_cannot_be_opened_leaves_an_export_to_the_others(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(32))
    (tmp_path / "key").chmod(0o600)
    near = open_store(tmp_path / "near", key_file=tmp_path / "key")
    tiers = [near, PosixTier(tmp_path / "pfs", name="pfs", level=3)]
    with Checkpointer(tiers, run="exp", task="sim") as ckpt:
        export = ckpt.export({"x": np.arange(5.0)}, step=3)
    (tmp_path / "key").unlink()
    with pytest.warns(CheckpointWarning, match="Tier 'store' was left out.*key"):
        assert load(export)["x"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(CheckpointError, match="key"), pytest.warns(CheckpointWarning):
        load(replace(export, tiers=export.tiers[:1]))


SEALED = """
key_file = "key"
encrypt = true
[[tiers]]
kind = "memory"
name = "ram"
level = 0
[[tiers]]
kind = "posix"
name = "pfs"
path = "store"
level = 3
[[tiers]]
kind = "posix"
name = "own"
path = "own"
level = 4
key_file = "other"
"""


def test_the_key_of_a_site_is_for_all_tiers_that_leave_the_process(tmp_path: Path) -> None:
    for number, name in enumerate(("key", "other")):
        (tmp_path / name).write_bytes(bytes([number]) * 32)
        (tmp_path / name).chmod(0o600)
    site = load_site(write(tmp_path, SEALED)).at(tmp_path)
    ram, pfs, own = site.open_tiers()
    assert isinstance(ram, MemoryTier)
    assert pfs.spec["key_file"] == str(tmp_path / "key")
    assert pfs.spec["encrypt"] is True
    assert own.spec["key_file"] == str(tmp_path / "other")
    assert own.spec["encrypt"] is False
    assert [model.spec for model in site.sealed_tiers][1:] == [pfs.spec, own.spec]


def test_encryption_takes_a_key(tmp_path: Path) -> None:
    text = SEALED.replace('key_file = "key"', "")
    with pytest.raises(ConfigError, match="encrypt needs a key_file"):
        load_site(write(tmp_path, text))


SERVED = """
key_file = "key"
encrypt = true
[[tiers]]
kind = "{kind}"
name = "near"
level = 1
{more}
[[tiers]]
kind = "redundant"
name = "neighbours"
peer_key_file = "key"
[[tiers]]
kind = "posix"
name = "pfs"
path = "store"
level = 3
[flush]
agent = true
"""


@pytest.mark.parametrize("kind", ["posix", "shared_memory"])
def test_an_encrypted_site_serves_sealed_bytes_only(tmp_path: Path, kind: str) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    arena = f"test-{uuid.uuid4().hex}"
    more = {
        "posix": 'path = "near"',
        "shared_memory": f'capacity = "8 MiB"\narena = "{arena}"',
    }[kind]
    text = SERVED.format(kind=kind, more=more)
    near, level_two, _ = load_site(write(tmp_path, text)).at(tmp_path).open_tiers()
    try:
        assert isinstance(level_two, RedundantTier)
        secret = b"nobody may see this"
        for key, tier in (("a", near), ("b", level_two.own)):
            tier.put(key, [secret])
            assert tier.get(key) == secret
            served = level_two.meeting.served.get(key)
            assert served.startswith(b"CKFSEAL1\x02")
            assert secret not in served
    finally:
        if kind == "shared_memory":
            SharedMemoryTier("near", capacity_bytes=8 << 20, arena=arena).remove()


def test_a_kind_of_tier_that_is_unknown_here_leaves_an_export_to_the_others(
    tmp_path: Path,
) -> None:
    with Checkpointer(tmp_path, run="exp", task="sim") as ckpt:
        export = ckpt.export({"x": np.arange(5.0)}, step=3)
    later = {"kind": "of-a-later-version", "name": "new", "level": 1}
    with pytest.warns(CheckpointWarning, match="'new' of kind 'of-a-later-version'"):
        loaded = load(replace(export, tiers=(later, *export.tiers)))
    assert loaded["x"].tolist() == [0, 1, 2, 3, 4]
    with (
        pytest.raises(ConfigError, match="none of the kinds of tiers"),
        pytest.warns(CheckpointWarning, match="'new'"),
    ):
        load(replace(export, tiers=(later,)))
