"""Walk over a state that is nearly the same again, as quickly as it takes to see that it is.

The first walk is recorded: each container with its type and keys, each array with its type,
dtype, shape, strides and address. The next one follows the record. Plain values are encoded
anew, arrays are compared all together, and where nothing else differs, the structure, the
names, the regions and their places are those of before. Arrays may also have moved, as long as
those that overlap moved together and none now overlaps another: a program that computes new
arrays in each step has them elsewhere each time. With any other difference the state is walked
again, and the new walk recorded.

A record is made of facts about arrays. It holds no array, no view and no container of the
state; what the application drops is gone, and a bytearray may grow.

``tests/property/test_recorded_laws.py``: after any change the result is that of a new walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ckptflow.data.buffers import I64s
from ckptflow.data.collector import collector_paused
from ckptflow.data.division import Division, Flattened
from ckptflow.data.dtypes import Unsupported
from ckptflow.data.facts import Facts
from ckptflow.data.leaves import LeafType, Node, encode_plain, is_short, leaf_types
from ckptflow.data.tree import refuse
from ckptflow.data.walk import Arrays, Differs, Inner, Plain, Step, Walk

_Run: TypeAlias = Arrays | Plain | Inner


class RecordedWalk:
    """Flattens one state again and again. Not for two threads at once."""

    def __init__(self) -> None:
        self._record: _Record | None = None

    def flatten(self, state: object) -> Flattened:
        """Return the structure and the regions of a state; nothing is copied or changed.

        The result is that of the first walk, over this state. Where the record does not fit,
        ``state_dict()`` of objects in the state is called twice.

        Raises:
            StateError: something in it cannot be stored; ``mismatches`` names every such place.
        """
        # Whatever is raised on the way, half a step may have been taken.
        record, self._record = self._record, None
        if record is not None:
            try:
                flattened = record.follow(state)
            except Differs:
                pass
            else:
                self._record = record
                return flattened
        with collector_paused():
            self._record, flattened = _walked(state)
        return flattened

    def forget(self) -> None:
        """Drop the record."""
        self._record = None


class _Record:
    def __init__(
        self, root: Step, facts: Facts, division: Division, types: tuple[LeafType, ...]
    ) -> None:
        self._root, self._facts, self._division, self._types = root, facts, division, types

    def follow(self, state: object) -> Flattened:
        """Flatten a state of which only values and addresses may be others.

        Raises:
            Differs: there is another difference.
        """
        if leaf_types() != self._types:
            raise Differs
        following = _Following()
        following.items(self._root, [state])
        addresses, owners = self._facts.look(following.leaves)
        if not self._division.holds(addresses):
            raise Differs
        return _flattened(self._root, self._division, addresses, owners, following.leaves)


def _walked(state: object) -> tuple[_Record, Flattened]:
    types, walk = leaf_types(), Walk()
    root = walk.visit(state)
    if walk.problems:
        raise refuse("The state cannot be saved", walk.problems)
    division, facts = Division(walk.arrays), Facts(walk.arrays)
    owners = [one.live.owner for one in walk.arrays]
    record = _Record(root, facts, division, types)
    leaves = [one.leaf for one in walk.arrays]
    return record, _flattened(root, division, division.addresses, owners, leaves)


def _flattened(
    root: Step,
    division: Division,
    addresses: I64s,
    owners: Sequence[Any],
    leaves: Sequence[Any],
) -> Flattened:
    table = division.table(addresses)
    return Flattened(root.node[1], table, division, addresses, owners, leaves)


class _Following:
    """One pass along the steps of a record; collects the arrays, in the order of the walk."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self._open: set[int] = set()

    def items(self, step: Step, items: Sequence[Any]) -> None:
        """Go through the items of a container, and bring its node up to date.

        A node that is not as before is a new one: who got the last structure keeps it.

        Raises:
            Differs: the walk would have gone another way.
        """
        node = step.node
        for number, run in enumerate(step.runs):
            if isinstance(run, Arrays):
                self.leaves += items[run.first : run.end]
                continue
            if isinstance(run, Plain):
                new, nodes = self._plain(run, items[run.first : run.end])
            else:
                new, nodes = self._inner(run, items[run.first])
            if nodes is not None:
                node = list(node) if node is step.node else node
                node[step.place(new.first, new.first + len(nodes))] = nodes
                step.runs[number] = new
        step.node = node

    def _plain(self, run: Plain, values: Sequence[Any]) -> tuple[_Run, list[Node] | None]:
        if run.same(values):
            return run, None
        nodes = [
            encode_plain(value) if is_short(value) else self._anew(value).node[1]
            for value in values
        ]
        return Plain.of(run.first, run.end, values), nodes

    def _inner(self, run: Inner, value: Any) -> tuple[_Run, list[Node] | None]:
        step, before = run.step, run.step.node
        if id(value) in self._open:
            raise Differs
        self._open.add(id(value))
        try:
            self.items(step, step.items(value))
            return run, None if step.node is before else [step.node]
        except Unsupported as problem:
            raise Differs from problem
        except Differs:
            if step.arrays:
                raise
        finally:
            self._open.remove(id(value))
        # Where no array was and none is, all may have changed: a list of numbers that grows.
        root = self._anew(value)
        (what,) = root.runs
        new = (
            Inner(run.first, what.step)
            if isinstance(what, Inner)
            else Plain.of(run.first, run.first + 1, [value])
        )
        return new, [root.node[1]]

    def _anew(self, value: Any) -> Step:
        """Walk over a part in which no array may be."""
        walk = Walk(self._open)
        root = walk.visit(value)
        if walk.problems or walk.arrays:
            raise Differs
        return root
