"""Level 2 as a tier: nodes on loopback that flush to it, are lost, and are restored from it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptflow import Checkpointer
from ckptflow.checkpointer import CheckpointWarning
from ckptflow.errors import (
    ConfigError,
    CorruptionError,
    FlushError,
    NotFoundError,
    TierUnavailable,
)
from ckptflow.manifest import seal
from ckptflow.model import LineageId
from ckptflow.policy.retention import Retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.prune import prune
from ckptflow.store.redundancy import meeting as meetings
from ckptflow.store.redundancy import tier as redundant
from ckptflow.store.redundancy.announce import Announcement, announce, announced
from ckptflow.store.redundancy.neighbour import Neighbour
from ckptflow.store.redundancy.survey import Member, check_identity, look
from ckptflow.store.redundancy.tier import SILENT_S, RedundantTier
from ckptflow.store.repair import repair
from ckptflow.store.verify import verify
from ckptflow.tiers.opening import open_tier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.sealed import SealedTier

pytestmark = pytest.mark.damaged_store  # Nodes are lost with parts of their stores.


class Node:
    """One node: its own folder, its view of level 2, and what it does for the others."""

    def __init__(self, number: int, spec: dict[str, Any], task: str | None = None) -> None:
        self.folder = Path(spec["own"]["path"])
        self.task, self.notes = task or f"task{number}", list[str]()
        self.own = open_tier(spec["own"])
        tier = open_tier(spec)
        assert isinstance(tier, RedundantTier)
        self.tier, self.shared = tier, open_tier(spec["meeting"])
        self.serving: Neighbour | None = self.tier.serve(self.notes.append)

    @property
    def tiers(self) -> list[Any]:
        return [self.own, self.tier, self.shared]

    def checkpointer(self, **options: Any) -> Checkpointer:
        chosen = {"every": "never", "keep": "all", "flush_every": {"pfs": 10**6}, **options}
        return Checkpointer(self.tiers, task=self.task, rng=False, **chosen)

    def save(self, *steps: int, **options: Any) -> None:
        """Save, and wait until the checkpoints survive the loss of a node."""
        with self.checkpointer(**options) as ckpt:
            if steps[0] > 1:
                ckpt.restore()
            for step in steps:
                ckpt.save(step, state(self.task, step)).wait(2)

    def lineage(self) -> Lineage:
        return Lineage(self.tiers, LineageId("default", self.task))

    def lose(self) -> None:
        """Lose the node with all that is on it."""
        self.stop()
        shutil.rmtree(self.folder)

    def stop(self) -> None:
        if self.serving:
            self.serving.close()
        self.serving = None


def state(task: str, step: int) -> dict[str, Any]:
    rng = np.random.default_rng([*task.encode(), step])
    return {"step": step, "w": rng.standard_normal(3000 + 500 * (len(task) + step))}


MakeNodes = Callable[..., list[Node]]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


@pytest.fixture
def make_nodes(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeNodes]:
    """Returns what starts nodes; those that are left are stopped at the end."""
    made: list[Node] = []
    monkeypatch.setattr(meetings, "GONE_AFTER", timedelta(days=1))

    def make(count: int, *, first: int = 0, sealed: bool = False, **options: Any) -> list[Node]:
        seal = {"key_file": str(key_file), "encrypt": True} if sealed else {}
        for number in range(first, first + count):
            own = {"kind": "posix", "name": "nvme", "level": 1, **seal}
            pfs = {"kind": "posix", "name": "pfs", "level": 3, "path": str(tmp_path / "pfs")}
            spec = {
                "kind": "redundant", "name": "partners", "level": 2,
                "scheme": "partner", "set_size": 8, "losses": 1, "wait_s": 0.0,
                "bind": "127.0.0.1", "peer_key_file": str(key_file),
                "own": {**own, "path": str(tmp_path / f"node{number}")},
                "meeting": {**pfs, **seal},
                **options,
            }  # fmt: skip
            made.append(Node(number, spec))
        return made[-count:]

    yield make
    for node in made:
        node.stop()
        node.tier.close()
        assert node.notes == []


def restored(node: Node, task: str) -> int | None:
    """Restore a task's newest checkpoint on a node, and compare it bit by bit."""
    with Checkpointer(node.tiers, task=task, rng=False, flush_every={"pfs": 10**6}) as ckpt:
        try:
            found: dict[str, Any] = ckpt.restore()
        except NotFoundError:
            return None
        assert (found["w"] == state(task, found["step"])["w"]).all()
        return ckpt.restored_step


SCHEMES = [
    {"scheme": "partner", "losses": 1},
    {"scheme": "partner", "losses": 2},
    {"scheme": "xor", "losses": 1},
    {"scheme": "rs", "losses": 2},
]


@pytest.mark.parametrize("options", SCHEMES, ids=lambda one: f"{one['scheme']}-{one['losses']}")
def test_what_a_lost_node_had_is_restored_elsewhere(
    make_nodes: MakeNodes, options: dict[str, Any]
) -> None:
    nodes = make_nodes(5, **options)
    for node in nodes:
        node.save(1, 2)
    lost = nodes[: options["losses"]]
    for node in lost:
        node.lose()
    (spare,) = make_nodes(1, first=5, **options)
    for node in lost:
        assert restored(spare, node.task) == 2


def test_after_more_losses_an_older_checkpoint_further_out_is_used(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(3, scheme="xor", losses=1)
    nodes[0].save(1, 2)  # The first goes to the outermost tier, too.
    for node in nodes:
        node.lose()
    (spare,) = make_nodes(1, first=3, scheme="xor", losses=1)
    assert restored(spare, nodes[0].task) == 1
    assert restored(spare, nodes[1].task) is None


def test_a_sealed_node_gives_away_sealed_bytes_only(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, sealed=True)
    nodes[0].save(1)
    assert isinstance(nodes[0].own, SealedTier)
    for node in nodes:
        for path in node.folder.rglob("*"):
            assert path.is_dir() or path.read_bytes().startswith(b"CKFSEAL1\x02")
    nodes[0].lose()
    (spare,) = make_nodes(1, first=3, sealed=True)
    assert restored(spare, nodes[0].task) == 1


def test_a_checkpoint_is_at_level_two_only_when_it_is_protected(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2)
    with nodes[0].checkpointer(flush_every={"partners": 10**6, "pfs": 10**6}) as ckpt:
        ckpt.save(1, state("x", 1)).wait(2)  # The first goes everywhere.
        while ckpt._writer._flusher.in_flight(ckpt.lineage.id):  # `pfs` may have been first.
            time.sleep(0.001)
        ckpt.save(2, state("x", 2)).wait(1)
    found = {
        one.id.step: [tier.name for tier in one.tiers] for one in nodes[0].lineage().valid()
    }
    assert found == {1: ["nvme", "partners", "pfs"], 2: ["nvme"]}
    for key in nodes[0].tier.iter_keys("lineages"):
        assert nodes[0].tier.size(key) == nodes[0].own.size(key)
        assert (
            nodes[0].tier.get(key, start_bytes=3, size_bytes=9) == nodes[0].own.get(key)[3:12]
        )
    with pytest.raises(NotFoundError, match="'lineages/nothing'"):
        nodes[0].tier.get("lineages/nothing")


def test_alone_nothing_is_protected_and_the_task_goes_on(make_nodes: MakeNodes) -> None:
    (node,) = make_nodes(1)
    with pytest.warns(CheckpointWarning, match="not protected"), pytest.raises(FlushError):
        node.save(1)
    assert restored(node, node.task) == 1


def test_a_damaged_copy_is_made_anew_from_others(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, scheme="xor", losses=1)
    nodes[0].save(1)
    (pack,) = (nodes[0].folder / nodes[0].lineage().id.prefix / "packs").iterdir()
    pack.unlink()
    key = pack.relative_to(nodes[0].folder).as_posix()
    assert len(nodes[1].tier.get(key)) == nodes[1].tier.size(key)
    report = {one.tier: one.sound for one in verify(*newest(nodes[0]))}
    assert report == {"nvme": False, "partners": True, "pfs": True}


def flip(path: Path) -> bytes:
    """Damage a file so that its size stays; return what it was."""
    sound = path.read_bytes()
    path.write_bytes(sound[:20] + bytes([sound[20] ^ 1]) + sound[21:])
    return sound


def objects(node: Node, kind: str) -> list[Path]:
    return sorted((node.folder / node.lineage().id.prefix / kind).iterdir())


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("options", SCHEMES, ids=lambda one: f"{one['scheme']}-{one['losses']}")
def test_a_damaged_copy_of_the_right_size_is_not_served(
    make_nodes: MakeNodes, options: dict[str, Any], sealed: bool
) -> None:
    nodes = make_nodes(4, sealed=sealed, **options)
    for node in nodes[:2]:
        node.save(1)
    for path in (*objects(nodes[0], "packs"), *objects(nodes[0], "manifests")):
        sound = nodes[0].own.get(key := path.relative_to(nodes[0].folder).as_posix())
        flip(path)
        for reader in (nodes[0].tier, nodes[3].tier):
            assert reader.get(key) == sound
            assert reader.get(key, start_bytes=5, size_bytes=40) == sound[5:45]
            view = bytearray(30)
            reader.read_into(key, view, start_bytes=10)
            assert view == sound[10:40]
    for path in (nodes[0].folder.parent / "pfs" / nodes[0].lineage().id.prefix).rglob("*.*"):
        if path.suffix in (".pack", ".ckpt"):
            path.unlink()
    assert restored(nodes[0], nodes[0].task) == 1


@pytest.mark.parametrize("how", ["flipped", "gone"])
@pytest.mark.parametrize("kind", ["packs", "manifests"])
def test_repair_takes_from_the_other_nodes(make_nodes: MakeNodes, kind: str, how: str) -> None:
    nodes = make_nodes(3, scheme="xor", losses=1)
    nodes[0].save(1, 2)  # Only the first is on the outermost tier, too.
    sound = {path: path.read_bytes() for path in objects(nodes[0], kind)}
    for path in sound:
        flip(path) if how == "flipped" else path.unlink()
    before = sorted(nodes[0].tier.iter_keys(""))
    lineage = nodes[0].lineage()
    report = repair(lineage, lineage.checkpoints(), everywhere=True)
    assert report.complete
    assert {path: path.read_bytes() for path in objects(nodes[0], kind)} == sound
    assert {one.tier for one in report.mended} <= {"nvme", "pfs"}
    assert ("nvme", "partners") in {(one.tier, one.source) for one in report.mended}
    assert sorted(nodes[0].tier.iter_keys("")) == before
    for found in lineage.checkpoints():
        assert all(copy.sound for copy in verify(lineage, found))


def newest(node: Node) -> tuple[Lineage, Any]:
    lineage = node.lineage()
    return lineage, lineage.checkpoints()[0]


def test_nothing_is_made_of_parity_that_is_damaged(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2)
    nodes[0].save(1)
    for path in (nodes[1].folder / "redundancy").rglob("*.parity"):
        path.write_bytes(bytes(path.stat().st_size))
    nodes[0].lose()
    (spare,) = make_nodes(1, first=2)
    keys = [key for key in spare.tier.iter_keys("lineages") if key.endswith(".pack")]
    assert keys
    for key in keys:
        with pytest.raises(CorruptionError, match=key):
            spare.tier.get(key)


def test_what_a_stripe_needs_stays_until_all_of_it_is_given_up(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, scheme="xor", losses=1)
    for node in nodes[:2]:
        node.save(1, 2)
    first, second = nodes[0].lineage(), nodes[1].lineage()
    prune(first, nodes[0].own, Retention(newest=1))
    nodes[1].lose()
    (spare,) = make_nodes(1, first=3, scheme="xor", losses=1)
    assert restored(spare, nodes[1].task) == 2
    assert second.id != first.id


def test_stripes_go_when_their_objects_have_been_given_up(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3)
    nodes[0].save(*range(1, 5))
    before = len(list(nodes[0].tier.iter_keys("lineages")))
    prune(nodes[0].lineage(), nodes[0].own, Retention(newest=1))
    nodes[0].tier.tidy()
    left = list(nodes[0].tier.iter_keys("lineages"))
    assert len(left) < before
    manifests = [key for key in left if key.endswith(".ckpt")]
    assert len(manifests) == 1
    nodes[0].lose()
    (spare,) = make_nodes(1, first=3)
    assert restored(spare, nodes[0].task) == 4


def test_prune_leaves_level_two_to_itself(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2)
    nodes[0].save(1, 2)
    before = list(nodes[0].tier.iter_keys(""))
    plan = prune(nodes[0].lineage(), nodes[0].tier, Retention(newest=1))
    assert (plan.manifests, plan.packs) == ((), ())
    assert list(nodes[0].tier.iter_keys("")) == before


def test_a_round_protects_what_lost_its_redundancy(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3)
    nodes[0].save(1)
    holder = next(node for node in nodes[1:] if (node.folder / "redundancy").exists())
    holder.lose()
    for announcement in announced(nodes[0].shared):
        if announcement.store not in {
            node.tier.meeting.own_id() for node in nodes if node.serving
        }:
            nodes[0].shared.delete(f"peers/{announcement.store}.json")
    for node in nodes:
        if node.serving:
            node.serving.round()
    nodes[0].lose()
    (spare,) = make_nodes(1, first=3)
    assert restored(spare, nodes[0].task) == 1


def test_a_node_that_has_not_been_heard_of_for_long_has_left(
    make_nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = make_nodes(3)
    monkeypatch.setattr(meetings, "GONE_AFTER", timedelta(minutes=10))
    nodes[0].tier.meeting._now = lambda: datetime.now(UTC) + timedelta(hours=1)
    _, others = nodes[0].tier.meeting.members()
    assert others == []


def test_it_cannot_hold_claims(make_nodes: MakeNodes) -> None:
    (node,) = make_nodes(1)
    assert node.lineage().fence_tier is node.shared
    with pytest.raises(ConfigError, match="cannot decide who creates 'a'"):
        node.tier.create("a", b"")


def test_a_group_that_is_taken_from_the_environment(
    make_nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_RACK", "r17")
    (node,) = make_nodes(1, groups={"rack": "row-${MY_RACK}"})
    assert [one.groups for one in announced(node.shared)] == [{"rack": "row-r17"}]
    monkeypatch.delenv("MY_RACK")
    with pytest.raises(ConfigError, match=r"'rack' of this node.*\$\{MY_RACK\} is not set"):
        node.tier.meeting.own_groups()


def test_its_spec_opens_it_elsewhere(make_nodes: MakeNodes) -> None:
    (node,) = make_nodes(1)
    again = open_tier(node.tier.spec)
    assert isinstance(again, RedundantTier)
    assert again.spec == node.tier.spec
    assert isinstance(again.own, PosixTier)
    assert bytes(range(32)).hex() not in f"{again!r} {again.spec}"
    again.close()


def test_a_copy_that_is_damaged_after_it_was_read_is_not_served(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3)
    nodes[0].save(1)
    for path in (*objects(nodes[0], "packs"), *objects(nodes[0], "manifests")):
        key = path.relative_to(nodes[0].folder).as_posix()
        sound = nodes[0].own.get(key)
        readers = (nodes[0].tier, nodes[2].tier)
        assert [reader.get(key) for reader in readers] == [sound, sound]
        flip(path)
        for reader in readers:
            assert reader.get(key) == sound
            view = bytearray(len(sound))
            reader.read_into(key, view)
            assert view == sound


def announced_at(nodes: list[Node], store: Node, server: Node) -> None:
    """Announce a store at the address of another one, as after a restart on the same port."""
    there = {one.store: one for one in announced(nodes[0].shared)}
    own, other = (there[node.tier.meeting.own_id()] for node in (store, server))
    moved = Announcement(store=own.store, host=other.host, port=other.port, since=own.since)
    announce(nodes[0].shared, moved)


def test_an_address_where_another_store_answers_is_nobody(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3)
    nodes[0].save(1)
    announced_at(nodes, store=nodes[1], server=nodes[0])
    own, others = nodes[2].tier.meeting.members()
    survey = look([own, *others])
    wrong = nodes[1].tier.meeting.own_id()
    assert list(survey.silent) == [wrong]
    assert "answers, not" in survey.silent[wrong]
    assert wrong not in nodes[2].tier._look(anew=True).members


def test_a_descriptor_of_a_newer_version_on_one_member_stops_nobody(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(3)
    nodes[0].save(1)
    before = list(nodes[1].tier.iter_keys("lineages"))
    sound = next(path for node in nodes for path in node.folder.rglob("stripe.json"))
    line = sound.read_bytes().split(b"\n")[0].replace(b'"version":1', b'"version":2')
    newer = nodes[2].folder / "redundancy" / ("f" * 32) / "stripe.json"
    newer.parent.mkdir(parents=True)
    newer.write_bytes(line + b"\n" + seal(line).hex().encode() + b"\n")
    nodes[1].tier._forget()
    assert list(nodes[1].tier.iter_keys("lineages")) == before


def test_a_member_that_does_not_answer_is_passed_over_for_a_while(
    make_nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = make_nodes(3)
    silent, asked = nodes[1].tier.meeting.own_id(), list[str]()
    now_s, tier = [0.0], nodes[0].tier
    tier._clock = lambda: now_s[0]

    def check(member: Member) -> None:
        asked.append(member.id)
        if member.id == silent:
            raise TierUnavailable("timed out")
        check_identity(member)

    monkeypatch.setattr(redundant, "check_identity", check)
    for now_s[0] in (0.0, 6.0, SILENT_S):
        assert silent not in tier._look(anew=True).members
    assert asked.count(silent) == 1
    now_s[0] = SILENT_S + 1
    tier._look(anew=True)
    assert asked.count(silent) == 2
    announced_at(nodes, store=nodes[1], server=nodes[2])  # Elsewhere it is asked at once.
    tier._look(anew=True)
    assert asked.count(silent) == 3


def test_the_file_of_the_key_may_be_in_the_home_folder(
    make_nodes: MakeNodes, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(key_file.parent))
    (node,) = make_nodes(1)
    again = open_tier(node.tier.spec | {"peer_key_file": "~/key"})
    assert isinstance(again, RedundantTier)
    assert again.meeting.key.key_id == node.tier.meeting.key.key_id
