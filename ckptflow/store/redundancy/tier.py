"""Level 2 as a tier: what the nodes of a redundancy set protect for each other.

A key is here when a stripe was made of it. Putting a pack leaves it on this node's own tier,
where it is already; putting a manifest has the whole checkpoint protected, and returns when
that is done. Reading takes the object from whichever member has it, if it is what was coded, or
makes it anew from a stripe; so this node's own copy may be missing or damaged. A flush, a
restore and a verification treat it like any other tier, and a repair reads from it; only prune
leaves it alone, since a stripe goes by itself when its objects have been given up.
``tests/unit/test_redundant_tier.py``, ``tests/process/test_redundant_nodes.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from ckptflow import manifest as manifest_file
from ckptflow.errors import (
    CheckpointError,
    ConfigError,
    CorruptionError,
    FormatError,
    NotFoundError,
    TierError,
)
from ckptflow.model import CheckpointId
from ckptflow.store.redundancy.coding import UNREADABLE, problem_of, read_object
from ckptflow.store.redundancy.meeting import Meeting
from ckptflow.store.redundancy.neighbour import Neighbour
from ckptflow.store.redundancy.scheme import Scheme
from ckptflow.store.redundancy.set import WAIT_S, RedundancySet
from ckptflow.store.redundancy.stripes import (
    REDUNDANCY,
    Stripe,
    is_stripe_id,
    parse_object_key,
    read_stripe,
)
from ckptflow.store.redundancy.survey import Member, check_identity
from ckptflow.tiers.opening import open_tier
from ckptflow.tiers.storekey import KEY_FILE_VARIABLE, StoreKey
from ckptflow.tiers.tier import Tier, check_key

FRESH_S = 5.0  # How long a look at the descriptors of all members is good for.
SILENT_S = 60.0  # How long a member that did not answer is passed over.
LOOK_S = 0.5  # Between two looks for somebody else.
REBUILT_MAX = 2  # Objects made anew that are kept, since packs are read in ranges.
CHECKED_MAX = 1 << 16  # Copies that were read once and found to be what was coded.


@dataclass(frozen=True, slots=True)
class _Look:
    """What the members have told: stripes by key of their objects, and who answered."""

    members: Mapping[str, Member]
    pieces: Mapping[str, list[tuple[Stripe, int]]]
    at_s: float

    def of(self, key: str) -> list[tuple[Stripe, int]]:
        return self.pieces.get(key, [])


@dataclass(slots=True)
class _Kept:
    """What is remembered between calls; a descriptor never changes."""

    stripes: dict[str, Stripe] = field(default_factory=dict)
    rebuilt: dict[tuple[str, str], bytes] = field(default_factory=dict)  # By stripe and key.
    checked: set[tuple[str, str, int]] = field(default_factory=set)  # Member, stripe, piece.
    silent: dict[str, tuple[Tier, float]] = field(default_factory=dict)  # And since when.
    look: _Look | None = None


class RedundantTier:
    """The stripes of this node's redundancy set.

    Args:
        own: this node's own tier, where its checkpoints are.
        meeting: where the nodes find each other, and how they are reached.
        scheme: how much redundancy.
        name: used in messages.
        wait_s: how long a checkpoint waits for others to come, and to be coded with.
        spec: how another process opens it.
        clock: seconds, monotonic.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        own: Tier,
        meeting: Meeting,
        scheme: Scheme,
        *,
        name: str = "redundant",
        wait_s: float = WAIT_S,
        spec: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self.own, self.meeting, self.scheme = own, meeting, scheme
        self._name, self._wait_s, self._clock = name, wait_s, clock
        self._spec = dict(spec or {})
        self._kept = _Kept()
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"RedundantTier({self._name!r}, {self.scheme.name}, own={self.own!r})"

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> RedundantTier:
        """See `ckptflow.tiers.opening.Opens`."""
        path = spec.get("peer_key_file") or spec["own"].get("key_file")
        path = Path(path).expanduser().absolute() if path else None
        key = StoreKey.from_file(path) if path else StoreKey.from_environment()
        if key is None:
            raise ConfigError(
                f"Tier {spec['name']!r} needs a key, by which nodes know each other: give it a "
                f"peer_key_file, or set {KEY_FILE_VARIABLE}."
            )
        own = open_tier(spec["own"])
        scheme = Scheme(name=spec["scheme"], set_size=spec["set_size"], losses=spec["losses"])
        meeting = Meeting(
            open_tier(spec["meeting"]),
            own,
            key,
            bind=spec["bind"],
            host=spec.get("host"),
            groups=spec.get("groups") or {},
        )
        return cls(own, meeting, scheme, name=spec["name"], wait_s=spec["wait_s"], spec=spec)

    @property
    def name(self) -> str:
        """Name from the site file."""
        return self._name

    @property
    def level(self) -> int:
        """2: it survives the loss of as many nodes of the set as the scheme says."""
        return 2

    @property
    def can_create(self) -> bool:
        """No: nodes that cannot see each other would both win."""
        return False

    @property
    def spec(self) -> dict[str, Any]:
        """See `Tier.spec`."""
        return dict(self._spec)

    # --- writing ---

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Tier.put`; see the module for what it means.

        Raises:
            FlushError: the checkpoint is not protected; it is as safe as it was.
        """
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        if not self._own_has(check_key(key), size_bytes):
            self.own.put(key, parts)
        parsed = parse_object_key(key)
        if parsed is None or CheckpointId.of_manifest(parsed[1]) is None:
            return
        where = f"{key!r} on tier {self._name!r}"
        manifest = manifest_file.decode(b"".join(parts), where=where)
        try:
            self._own_set_in_company().protect_checkpoint(parsed[0], manifest)
        finally:
            self._forget()

    def create(self, key: str, value: Buffer) -> None:  # noqa: ARG002 - as `Tier` has it.
        """See `Tier.create`: refused."""
        check_key(key)
        raise ConfigError(
            f"Tier {self._name!r} cannot decide who creates {key!r}: another tier holds the "
            f"claims."
        )

    def delete(self, key: str) -> None:
        """See `Tier.delete`; what is coded stays until its member gives it up, see `tidy`."""
        if not _is_coded(check_key(key)):
            self.own.delete(key)

    # --- reading ---

    def get(self, key: str, *, start_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """See `Tier.get`."""
        if not _is_coded(check_key(key)):
            return self.own.get(key, start_bytes=start_bytes, size_bytes=size_bytes)
        end = None if size_bytes is None else start_bytes + size_bytes

        def read(tier: Tier) -> bytes:
            return tier.get(key, start_bytes=start_bytes, size_bytes=size_bytes)

        value: bytes = self._read(
            key, read, lambda data: data[start_bytes:end], start_bytes=start_bytes, end=end
        )
        return value

    def read_into(self, key: str, target: Buffer, *, start_bytes: int = 0) -> None:
        """See `Tier.read_into`."""
        view = memoryview(target).cast("B")

        def place(data: bytes) -> None:
            piece = memoryview(data)[start_bytes : start_bytes + len(view)]
            if len(piece) < len(view):
                raise CorruptionError(
                    f"{key!r} on tier {self._name!r} ends after {len(data)} bytes; {len(view)} "
                    f"bytes were expected from byte {start_bytes} on."
                )
            view[:] = piece

        if not _is_coded(check_key(key)):
            self.own.read_into(key, target, start_bytes=start_bytes)
            return
        self._read(
            key,
            lambda tier: tier.read_into(key, view, start_bytes=start_bytes),
            place,
            start_bytes=start_bytes,
            end=start_bytes + len(view),
        )

    def size(self, key: str) -> int:
        """See `Tier.size`."""
        if not _is_coded(check_key(key)):
            return self.own.size(key)
        stripe, number = self._found(key)[0]
        return stripe.data[number].size_bytes

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`: the keys of which there is a stripe; of notices, our own."""
        if check_key(prefix, prefix=True).endswith("/guards"):
            yield from self.own.iter_keys(prefix)
            return
        start = f"{prefix}/" if prefix else ""
        yield from sorted(key for key in self._look().pieces if key.startswith(start))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        skip = len(prefix) + 1 if prefix else 0
        tails = (key[skip:] for key in self.iter_keys(prefix))
        yield from sorted({tail.split("/")[0] for tail in tails if "/" in tail})

    # --- the set ---

    def tidy(self) -> None:
        """Delete the stripes that nothing needs any more, and look anew.

        Raises:
            TierError: a member failed; what is left goes the next time.
        """
        self._whole_set().release_now()
        self._forget()

    def serve(self, note: Callable[[str], None]) -> Neighbour:
        """See `ckptflow.tiers.tier.Dependent.serve`."""
        return Neighbour(self.meeting, self._own_set, self._whole_set, note=note)

    def close(self) -> None:
        """Close the connections to other nodes; they are opened again when they are needed."""
        self.meeting.hang_up()

    def _own_set(self) -> RedundancySet:
        """Return the set of this node, as the nodes that take part now make it up."""
        own, others = self.meeting.members()
        chosen = self.meeting.set_of(own, others, self.scheme)
        return RedundancySet(own=own, others=chosen, scheme=self.scheme, wait_s=self._wait_s)

    def _own_set_in_company(self) -> RedundancySet:
        """Return the set of this node; if nobody else is there yet, after a wait."""
        ends_s = self._clock() + self._wait_s
        while not (found := self._own_set()).others and self._clock() < ends_s:
            self._sleep(LOOK_S)
        return found

    def _whole_set(self) -> RedundancySet:
        """Return all nodes as one set: what was coded before may lie anywhere."""
        own, others = self.meeting.members()
        return RedundancySet(own=own, others=others, scheme=self.scheme, wait_s=self._wait_s)

    # --- inside ---

    def _own_has(self, key: str, size_bytes: int) -> bool:
        try:
            return self.own.size(key) == size_bytes
        except NotFoundError:
            return False

    def _read(
        self,
        key: str,
        read: Callable[[Tier], Any],
        part: Callable[[bytes], Any],
        *,
        start_bytes: int,
        end: int | None,
    ) -> Any:
        """Read an object where it is sound, or make it anew and take a part of that."""
        found = self._found(key)
        look, failures = self._look(), list[CheckpointError]()
        for stripe, number in found:
            if (data := self._kept.rebuilt.get((stripe.id, key))) is not None:
                return part(data)
            size_bytes = stripe.data[number].size_bytes
            whole = start_bytes == 0 and (end is None or end >= size_bytes)
            for member in self._holders(look, stripe.data[number].member):
                try:
                    self._check(member, stripe, number, anew=whole)
                    return read(member.tier)
                except UNREADABLE as error:
                    failures.append(error)
        for stripe, number in found:
            try:
                return part(self._made_anew(key, stripe, number, look))
            except CorruptionError as error:
                failures.append(error)
        raised = CorruptionError(
            f"{key!r} on tier {self._name!r} is on no node that answers, and cannot be rebuilt."
        )
        for failure in failures:
            for text in (str(failure), *getattr(failure, "__notes__", ())):
                raised.add_note(text)
        raise raised

    def _check(self, member: Member, stripe: Stripe, number: int, *, anew: bool) -> None:
        """Raise unless a member's copy of an object is what was coded.

        Before ranges are read from it, it is read for that once; before a whole read, as of a
        manifest or for a repair, each time (``anew``): it may have been damaged since.

        Raises:
            CorruptionError: it is damaged, or cannot be read.
        """
        place = (member.id, stripe.id, number)
        if place in self._kept.checked and not anew:
            return
        self._kept.checked.discard(place)
        if problem := problem_of(stripe, number, {stripe.members[number]: member.tier}):
            raise CorruptionError(problem)
        if len(self._kept.checked) < CHECKED_MAX:
            self._kept.checked.add(place)

    def _holders(self, look: _Look, member: str) -> Iterator[Member]:
        """Yield who may have an object: this node, if it was rebuilt here; then its own."""
        own = self.meeting.own_id()
        for one in dict.fromkeys((own, member)):
            if one in look.members:
                yield look.members[one]

    def _made_anew(self, key: str, stripe: Stripe, number: int, look: _Look) -> bytes:
        with self._lock:
            if (data := self._kept.rebuilt.get((stripe.id, key))) is not None:
                return data
            tiers = {name: member.tier for name, member in look.members.items()}
            present = [n for n, one in enumerate(stripe.members) if one in tiers]
            data = b"".join(block.data for block in read_object(stripe, number, present, tiers))
            while len(self._kept.rebuilt) >= REBUILT_MAX:
                del self._kept.rebuilt[next(iter(self._kept.rebuilt))]
            self._kept.rebuilt[stripe.id, key] = data
            return data

    def _found(self, key: str) -> list[tuple[Stripe, int]]:
        found = self._look().of(key) or self._look(anew=True).of(key)
        if not found:
            raise NotFoundError(f"Tier {self._name!r} holds no {key!r}.")
        return found

    def _look(self, *, anew: bool = False) -> _Look:
        """Return which stripes there are, as of `FRESH_S` ago at the most."""
        with self._lock:
            look = self._kept.look
            if look is None or anew or self._clock() - look.at_s > FRESH_S:
                look = self._kept.look = self._look_again()
            return look

    def _look_again(self) -> _Look:
        own, others = self.meeting.members()
        members: dict[str, Member] = {}
        stripes: dict[str, Stripe] = {}
        for member in (own, *(one for one in others if not self._is_silent(one))):
            try:
                check_identity(member)
                names = [
                    one for one in member.tier.iter_folders(REDUNDANCY) if is_stripe_id(one)
                ]
                stripes |= {
                    one: stripe for one in names if (stripe := self._stripe(member, one))
                }
            except TierError:
                if member is own:
                    raise
                self._kept.silent[member.id] = (member.tier, self._clock())
                continue
            members[member.id] = member
        self._kept.stripes = stripes
        pieces: dict[str, list[tuple[Stripe, int]]] = {}
        for name in sorted(stripes, reverse=True):  # The youngest first.
            for number, piece in enumerate(stripes[name].data):
                pieces.setdefault(piece.key, []).append((stripes[name], number))
        return _Look(members, pieces, self._clock())

    def _is_silent(self, member: Member) -> bool:
        """Tell whether it did not answer a short while ago, at the address that it has now."""
        tier, since_s = self._kept.silent.get(member.id, (None, 0.0))
        if tier is member.tier and self._clock() - since_s <= SILENT_S:
            return True
        self._kept.silent.pop(member.id, None)
        return False

    def _stripe(self, member: Member, name: str) -> Stripe | None:
        if name in self._kept.stripes:
            return self._kept.stripes[name]
        try:
            stripe = read_stripe(member.tier, name)
        except (NotFoundError, CorruptionError, FormatError):
            return None  # Unfinished, released since, damaged here, or of a newer version.
        return stripe if stripe.id == name else None

    def _forget(self) -> None:
        with self._lock:
            self._kept.look = None


def _is_coded(key: str) -> bool:
    """Tell whether stripes are made of such objects; others are this node's own affair."""
    return parse_object_key(key) is not None
