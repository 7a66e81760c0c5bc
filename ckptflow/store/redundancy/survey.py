"""Look at the members of a redundancy set: what they hold, and what that survives.

Nothing is remembered between looks: the objects and descriptors on the members are the only
truth. A member that does not answer is noted and left out. An object counts as *held* while a
manifest of its member names it; what no manifest names any more is *given up*.
``tests/unit/test_redundancy_survey.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ckptflow import manifest as manifest_file
from ckptflow.errors import (
    CorruptionError,
    FormatError,
    NotFoundError,
    TierError,
    TierUnavailable,
)
from ckptflow.manifest import seal
from ckptflow.model import LINEAGES, CheckpointId, LineageId, PackRef
from ckptflow.policy.groups import Node
from ckptflow.store.descriptor import RECORD_BYTES_MAX, ensure_store, store_id
from ckptflow.store.redundancy.stripes import (
    REDUNDANCY,
    DataPiece,
    Stripe,
    is_stripe_id,
    parse_object_key,
    read_stripe,
)
from ckptflow.tiers.tier import Tier

_LOOKS_MAX = 5  # A live run prunes while we look; then we look again.


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a redundancy set: the id of its store, its tier, its failure groups."""

    id: str
    tier: Tier
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def node(self) -> Node:
        """What the choice of sets and places needs to know."""
        return Node(self.id, self.groups)


@dataclass(frozen=True, slots=True)
class Held:
    """An object that a member's checkpoints need.

    ``pack`` is what the manifest says of a pack. The seal of other objects is that of their
    bytes; a pack is only read when it is coded.
    """

    member: str
    key: str
    lineage: LineageId
    size_bytes: int
    pack: PackRef | None = None
    seal: bytes | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Where it is: (member, key)."""
        return self.member, self.key

    def is_piece(self, piece: DataPiece) -> bool:
        """Tell whether a stripe was made of this very object."""
        same = (self.member, self.key, self.size_bytes) == (
            piece.member,
            piece.key,
            piece.size_bytes,
        )
        return same and self.seal in (None, piece.seal)


@dataclass(frozen=True, slots=True)
class Seen:
    """A stripe: which members have its descriptor, and which of its pieces are there."""

    stripe: Stripe
    described: frozenset[str]
    present: frozenset[int]

    def losses(self, assumed: Collection[str] = ()) -> int:
        """Return how many members may be lost, whichever they are, so that it can be decoded.

        Args:
            assumed: members that do not answer now and are taken to hold what they held.
        """
        members = self.stripe.members
        silent = {one for one in assumed if one in members}
        pieces = self.present | {n for n, one in enumerate(members) if one in silent}
        described = self.described | silent
        return max(0, min(len(pieces) - len(self.stripe.data), len(described) - 1))


@dataclass(frozen=True, slots=True)
class Survey:
    """What was seen.

    Attributes:
        members: those that answered, by id.
        silent: those that did not, and why.
        objects: what their checkpoints need, by (member, key).
        packs: what every readable manifest needs, by (member, key).
        stripes: by id.
        loose: (member, key) of parity without a descriptor on any member.
    """

    members: dict[str, Member]
    silent: dict[str, str]
    objects: dict[tuple[str, str], Held]
    packs: dict[tuple[str, str], tuple[PackRef, ...]]
    stripes: dict[str, Seen]
    loose: list[tuple[str, str]]
    _of_key: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for seen in self.stripes.values():
            self.add(seen)

    def add(self, seen: Seen) -> None:
        """Take in a stripe that has been made since."""
        self.stripes[seen.stripe.id] = seen
        for piece in seen.stripe.data:
            self._of_key.setdefault((piece.member, piece.key), []).append(seen.stripe.id)

    def forget(self, stripe_id: str) -> None:
        """Leave out a stripe that has been deleted since."""
        for piece in self.stripes.pop(stripe_id).stripe.data:
            self._of_key[piece.member, piece.key].remove(stripe_id)

    def of_key(self, member: str, key: str) -> list[tuple[Seen, int]]:
        """Return the stripes of what a member had under a key, and the number of the piece.

        The youngest first: a manifest may have been replaced.
        """
        names = sorted(self._of_key.get((member, key), ()), reverse=True)
        return [
            (self.stripes[name], number)
            for name in names
            for number, piece in enumerate(self.stripes[name].stripe.data)
            if (piece.member, piece.key) == (member, key)
        ]

    def of_object(self, held: Held) -> Iterator[Seen]:
        """Yield the stripes that were made of an object."""
        for seen, number in self.of_key(held.member, held.key):
            if held.is_piece(seen.stripe.data[number]):
                yield seen

    def losses(self, held: Held, assumed: Collection[str] = ()) -> int:
        """Return how many members may be lost so that an object can be had again."""
        return max((seen.losses(assumed) for seen in self.of_object(held)), default=0)

    def is_held(self, piece: DataPiece) -> bool:
        """Tell whether a checkpoint of an answering member needs the object of a piece."""
        held = self.objects.get((piece.member, piece.key))
        return held is not None and held.is_piece(piece)

    def records(self, member: str, lineage: LineageId) -> list[Held]:
        """Return what a member holds that says where attempts of a lineage went on from."""
        return [
            held
            for held in self.objects.values()
            if (held.member, held.lineage) == (member, lineage)
            and held.pack is None
            and held.place not in self.packs
        ]

    def checkpoint_losses(
        self,
        member: str,
        lineage: LineageId,
        checkpoint: CheckpointId,
        assumed: Collection[str] = (),
    ) -> int:
        """Return how many members may be lost so that a member's checkpoint can be had again.

        Level 2 means 1 or more. 0 for a checkpoint that is not there.
        """
        prefix = f"{lineage.prefix}/"
        packs = self.packs.get((member, prefix + checkpoint.manifest_key))
        if packs is None:
            return 0
        keys = [checkpoint.manifest_key, *(pack.key for pack in packs)]
        objects = [self.objects.get((member, prefix + key)) for key in keys]
        objects += self.records(member, lineage)  # Without them it might be void.
        return min(self.losses(held, assumed) if held else 0 for held in objects)


def member_of(tier: Tier, groups: Mapping[str, str] | None = None) -> Member:
    """Return the member that a tier is; it becomes a store if it is none."""
    ensure_store(tier)
    return Member(store_id(tier), tier, groups or {})


def check_identity(member: Member) -> None:
    """Raise unless it is that member who answers: another store may have its address by now.

    Raises:
        TierUnavailable: it is another one, or none.
    """
    try:
        found = store_id(member.tier)
    except (NotFoundError, CorruptionError, FormatError) as error:
        raise TierUnavailable(f"Tier {member.tier.name!r} is no store: {error}") from error
    if found != member.id:
        raise TierUnavailable(
            f"At tier {member.tier.name!r} store {found[:8]} answers, not {member.id[:8]}."
        )


def look(
    members: Sequence[Member], *, note: Callable[[str], None] = lambda _text: None
) -> Survey:
    """Look at all members that answer.

    Args:
        members: of one redundancy set.
        note: told, in a sentence, of every member or object that was left out and why.
    """
    looks: dict[str, _Look] = {}
    silent: dict[str, str] = {}
    for member in members:
        try:
            check_identity(member)
            looks[member.id] = _look_at(member, note)
        except TierError as error:
            silent[member.id] = str(error)
            note(f"Member {member.id[:8]} (tier {member.tier.name!r}) was left out: {error}")
    objects = {key: held for one in looks.values() for key, held in one.objects.items()}
    stripes = _stripes(looks, objects)
    return Survey(
        members={one.id: one for one in members if one.id in looks},
        silent=silent,
        objects=objects,
        packs={key: found for one in looks.values() for key, found in one.packs.items()},
        stripes=stripes,
        loose=[
            (member, key)
            for member, one in looks.items()
            for key in one.redundancy
            if is_stripe_id(key.split("/")[1]) and key.split("/")[1] not in stripes
        ],
    )


@dataclass(slots=True)
class _Look:
    """One member."""

    lineages: frozenset[str]  # Every key there.
    objects: dict[tuple[str, str], Held] = field(default_factory=dict)
    packs: dict[tuple[str, str], tuple[PackRef, ...]] = field(default_factory=dict)
    redundancy: frozenset[str] = frozenset()  # Every key there.
    stripes: dict[str, Stripe] = field(default_factory=dict)


def _look_at(member: Member, note: Callable[[str], None]) -> _Look:
    for _ in range(_LOOKS_MAX):
        looking = _Look(frozenset(member.tier.iter_keys(LINEAGES)))
        try:
            for key in sorted(looking.lineages):
                _look_at_object(member, key, looking, note)
        except NotFoundError:  # Pruned since it was listed; a newer manifest may have come.
            continue
        looking.redundancy = frozenset(member.tier.iter_keys(REDUNDANCY))
        looking.stripes = _descriptors(member, looking.redundancy, note)
        return looking
    raise TierError(f"Tier {member.tier.name!r} changed during each of {_LOOKS_MAX} looks.")


def _look_at_object(
    member: Member, key: str, looking: _Look, note: Callable[[str], None]
) -> None:
    parsed = parse_object_key(key)
    if parsed is None or CheckpointId.of_pack(parsed[1]):
        return
    lineage, within = parsed
    is_manifest = CheckpointId.of_manifest(within) is not None
    limit = manifest_file.OBJECT_BYTES_MAX if is_manifest else RECORD_BYTES_MAX
    try:
        data = member.tier.get(key, size_bytes=limit + 1)
    except CorruptionError as error:  # It is sealed, and forged or damaged.
        note(f"It gets no redundancy: {error}")
        return
    if not is_manifest and len(data) > limit:
        note(f"It gets no redundancy: {key!r} on tier {member.tier.name!r} is no record.")
        return
    if is_manifest:
        try:
            manifest = manifest_file.decode(data, where=f"{key!r} on tier {member.tier.name!r}")
        except (CorruptionError, FormatError) as error:
            note(f"It gets no redundancy: {error}")
            return
        looking.packs[member.id, key] = manifest.packs
        for pack in manifest.packs:
            at = f"{lineage.prefix}/{pack.key}"
            if at in looking.lineages:
                held = Held(member.id, at, lineage, pack.size_bytes, pack)
                looking.objects[member.id, at] = held
    looking.objects[member.id, key] = Held(member.id, key, lineage, len(data), seal=seal(data))


def _descriptors(
    member: Member, keys: frozenset[str], note: Callable[[str], None]
) -> dict[str, Stripe]:
    found = {}
    for key in sorted(keys):
        name = key.split("/")[1]
        if not is_stripe_id(name) or not key.endswith("/stripe.json"):
            continue
        try:
            stripe = read_stripe(member.tier, name)
        except NotFoundError:
            continue
        except (CorruptionError, FormatError) as error:
            note(str(error))
            continue
        if stripe.id == name and member.id in stripe.members:
            found[name] = stripe
    return found


def _stripes(
    looks: Mapping[str, _Look], objects: Mapping[tuple[str, str], Held]
) -> dict[str, Seen]:
    found: dict[str, Stripe] = {}
    described: dict[str, set[str]] = {}
    for member, one in looks.items():
        for name, stripe in one.stripes.items():
            if found.setdefault(name, stripe) == stripe:
                described.setdefault(name, set()).add(member)
    return {
        name: Seen(
            stripe, frozenset(described[name]), frozenset(_present(stripe, looks, objects))
        )
        for name, stripe in sorted(found.items())
    }


def _present(
    stripe: Stripe, looks: Mapping[str, _Look], objects: Mapping[tuple[str, str], Held]
) -> Iterator[int]:
    for number, member in enumerate(stripe.members):
        if member not in looks:
            continue
        if number >= len(stripe.data):
            if looks[member].redundancy.issuperset(stripe.keys_of(number)):
                yield number
        else:
            piece = stripe.data[number]
            held = objects.get((member, piece.key))
            # A pack that was given up is still there to decode others with.
            if held.is_piece(piece) if held else piece.key in looks[member].lineages:
                yield number
