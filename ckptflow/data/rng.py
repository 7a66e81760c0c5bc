"""States of random number generators: of objects in the state, and of the process.

A generator's state becomes a tree of plain values and arrays and goes the way of every other
state. Bit generators come from an allow-list; a name in a checkpoint is never imported.

NumPy's ``Generator.spawn`` draws from the seed sequence, which is not part of the bit
generator's state and cannot be set. It is stored, so that a generator made anew spawns as the
old one would have. A generator restored in place spawns on exactly if it was seeded alike,
which a script that runs again does; its draws are exact in any case.

``tests/unit/test_rng.py`` keeps it true. States of CUDA devices are untested here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState, SeedSequence

from ckptflow.data.dtypes import Unsupported
from ckptflow.errors import FormatError, StateError

BIT_GENERATORS: dict[str, Any] = {
    name: getattr(np.random, name)
    for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
}


def rng_name(value: object) -> str | None:
    """Return the stored name of a generator's class; None if ``value`` is no generator."""
    if type(value) is random.Random:
        return "random.Random"
    if type(value) is Generator:
        return f"numpy.Generator/{type(value.bit_generator).__name__}"
    if type(value) is RandomState:
        return f"numpy.RandomState/{type(value._bit_generator).__name__}"  # noqa: SLF001
    return "torch.Generator" if _is_torch_generator(value) else None


def _is_torch_generator(value: object) -> bool:
    generator_type = getattr(sys.modules.get("torch"), "Generator", None)
    return generator_type is not None and isinstance(value, generator_type)


def get_state(value: Any) -> dict[str, Any]:
    """Return a generator's state as a tree of plain values and arrays.

    Raises:
        Unsupported: its bit generator is not on the allow-list.
    """
    if isinstance(value, random.Random):
        return _get_python(value)
    if isinstance(value, RandomState):
        state: dict[str, Any] = value.get_state(legacy=False)
        _check_bits(state["bit_generator"])
        return state
    if isinstance(value, Generator):
        _check_bits(type(value.bit_generator).__name__)
        return {
            "bits": dict(value.bit_generator.state),
            "seed": _get_seed(value.bit_generator),
        }
    return {"device": str(value.device), "state": value.get_state().numpy()}


def set_state(value: Any, state: Mapping[str, Any]) -> None:
    """Put a generator into a stored state."""
    if isinstance(value, random.Random):
        _set_python(value, state)
    elif isinstance(value, RandomState):
        value.set_state(dict(state))
    elif isinstance(value, Generator):
        value.bit_generator.state = state["bits"]
        _advance_seed(value.bit_generator, state["seed"])
    else:
        value.set_state(sys.modules["torch"].from_numpy(state["state"].copy()))


def new_generator(name: str, state: Mapping[str, Any]) -> Any:
    """Return a new generator in a stored state.

    Raises:
        FormatError: the name is not on the allow-list.
        StateError: it is torch's, and torch is not imported.
    """
    kind, _, bits = name.partition("/")
    value: Any
    if name == "random.Random":
        value = random.Random()  # noqa: S311
    elif kind == "numpy.Generator" and bits in BIT_GENERATORS:
        value = Generator(BIT_GENERATORS[bits](_new_seed(state["seed"])))
    elif kind == "numpy.RandomState" and bits in BIT_GENERATORS:
        value = RandomState(BIT_GENERATORS[bits]())
    elif name == "torch.Generator":
        torch = sys.modules.get("torch")
        if torch is None:
            raise StateError("The checkpoint holds a torch.Generator: import torch first.")
        value = torch.Generator(device=state["device"])
    else:
        raise FormatError(f"The checkpoint holds a random generator {name!r}, not known here.")
    set_state(value, state)
    return value


def _check_bits(name: str) -> None:
    if name not in BIT_GENERATORS:
        known = ", ".join(BIT_GENERATORS)
        raise Unsupported(f"a generator on {name}; known are {known}")


def _get_python(value: random.Random) -> dict[str, Any]:
    version, words, gauss = value.getstate()
    return {"version": version, "words": np.array(words, dtype="<u4"), "gauss": gauss}


def _set_python(value: random.Random, state: Mapping[str, Any]) -> None:
    value.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))


def _get_seed(bits: Any) -> dict[str, Any] | None:
    seed = getattr(bits, "seed_seq", None)
    if not isinstance(seed, SeedSequence):
        return None
    entropy = seed.entropy
    if entropy is not None and not isinstance(entropy, int):
        entropy = [int(word) for word in np.asarray(entropy).ravel()]
    return {
        "entropy": entropy,
        "spawn_key": [int(word) for word in seed.spawn_key],
        "pool_size": int(seed.pool_size),
        "n_children_spawned": int(seed.n_children_spawned),
    }


def _new_seed(seed: Mapping[str, Any] | None) -> SeedSequence | None:
    if seed is None:
        return None
    return SeedSequence(
        seed["entropy"],
        spawn_key=tuple(seed["spawn_key"]),
        pool_size=seed["pool_size"],
        n_children_spawned=seed["n_children_spawned"],
    )


def _advance_seed(bits: Any, stored: Mapping[str, Any] | None) -> None:
    own = _get_seed(bits)
    if own is None or stored is None:
        return
    ahead = stored["n_children_spawned"] - own["n_children_spawned"]
    if ahead > 0 and {**own, "n_children_spawned": 0} == {**stored, "n_children_spawned": 0}:
        bits.seed_seq.spawn(ahead)


# --- of the process ------------------------------------------------------------------------


def capture_rng() -> dict[str, Any]:
    """Return the states of the process's own generators, as a state to store.

    Python's ``random`` and NumPy's legacy global one always; torch's, if torch is imported;
    those of all CUDA devices, if torch has started to use them.
    """
    tree: dict[str, Any] = {
        "python": _get_python(random._inst),  # noqa: SLF001
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        tree["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_initialized():
            tree["cuda"] = [state.numpy() for state in torch.cuda.get_rng_state_all()]
    return tree


def restore_rng(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Put the process's own generators into stored states.

    Returns:
        A sentence for each stored state that has no generator here, so that the caller can
        tell the user; empty if everything was restored.
    """
    _set_python(random._inst, tree["python"])  # noqa: SLF001
    np.random.set_state(tree["numpy"])  # noqa: NPY002
    torch: Any = sys.modules.get("torch")
    if torch is None:
        if "torch" not in tree:
            return ()
        return ("torch's random state was not restored: import torch before restoring.",)
    if "torch" in tree:
        torch.set_rng_state(torch.from_numpy(tree["torch"].copy()))
    states = [torch.from_numpy(state.copy()) for state in tree.get("cuda", ())]
    devices = torch.cuda.device_count() if states else 0
    if len(states) != devices:
        return (
            f"The random states of {len(states)} CUDA devices were not restored: "
            f"this process sees {devices}.",
        )
    if states:
        torch.cuda.set_rng_state_all(states)
    return ()
