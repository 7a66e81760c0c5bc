"""What is particular to modules and optimizers of torch, beyond ``state_dict``.

A module is stored under the names that its parts have without wrappers: what
``torch.compile`` and data parallelism put around a module, or around a part of it, changes
no name, so a checkpoint fits whether or not they are used this time.

An optimizer takes state over by casting it to the type of its parameter, which loses bits
wherever the two types differ (the 32-bit ``mu_product`` of ``NAdam`` beside a bfloat16
parameter, say). Here such values get the type back that they were stored with.

Nothing here imports torch. ``tests/unit/test_torch_objects.py`` keeps it true.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

from ckptflow.data.torch_arrays import is_tensor

_COMPILED, _EXTRA_STATE = "_orig_mod", "_extra_state"  # Torch's own names.


def is_module(value: Any) -> bool:
    """Tell whether ``value`` is a torch.nn.Module."""
    return _is_a(value, "torch.nn", "Module")


def is_optimizer(value: Any) -> bool:
    """Tell whether ``value`` is a torch.optim.Optimizer."""
    return _is_a(value, "torch.optim", "Optimizer")


def is_scheduler(value: Any) -> bool:
    """Tell whether ``value`` is a torch.optim.lr_scheduler.LRScheduler."""
    return _is_a(value, "torch.optim.lr_scheduler", "LRScheduler")


def is_extra_state(key: object) -> bool:
    """Tell whether a module's dict has under ``key`` what its ``get_extra_state`` returned."""
    return isinstance(key, str) and key.rpartition(".")[2] == _EXTRA_STATE


def state_of(value: Any) -> Any:
    """Return ``value.state_dict()``; of a module, under the names it has without wrappers."""
    if not is_module(value):
        return value.state_dict()
    state = _bare(value).state_dict()
    return _renamed(state, {key: _plain_name(key) for key in state})


def load_state(value: Any, state: Any) -> None:
    """Give a state that `state_of` returned back by ``load_state_dict``."""
    if is_module(value):
        module = _bare(value)
        own = module.state_dict()
        module.load_state_dict(_renamed(state, {_plain_name(key): key for key in own}))
        return
    value.load_state_dict(state)
    if is_optimizer(value) and {"state", "param_groups"} <= set(state):
        _keep_types(value, state)


def group_mismatches(node: Any, own: Any) -> list[tuple[str, str]]:
    """Return how an optimizer's groups of parameters differ from stored ones: where, and what.

    The optimizer refuses to load them, too, but only when modules are restored already.

    Args:
        node: of the stored optimizer's dict, as in the structure of a checkpoint.
        own: the dict of the optimizer that is there.
    """
    stored = [len(_items(group, "params")) for group in _items(node, "param_groups")]
    there = [len(group["params"]) for group in own.get("param_groups", ())]
    if len(stored) != len(there):
        sizes = f"{len(stored)} in the checkpoint, {len(there)} in the state"
        return [("param_groups", f"groups of parameters: {sizes}")]
    return [
        (f"param_groups/{number}", f"parameters: {old} in the checkpoint, {new} in the state")
        for number, (old, new) in enumerate(zip(stored, there, strict=True))
        if old != new
    ]


def _items(node: Any, key: str) -> list[Any]:
    """Return the items of the list that a dict node has under ``key``."""
    match node:
        case ["dict", *pairs] if key in pairs[::2]:
            value = pairs[2 * pairs[::2].index(key) + 1]
            return value[1:] if isinstance(value, list) else []
    return []


def _is_a(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _bare(module: Any) -> Any:
    """Return the module inside wrappers for data parallelism."""
    while any(
        _is_a(module, "torch.nn.parallel", name)
        for name in ("DataParallel", "DistributedDataParallel")
    ):
        module = module.module
    return module


def _plain_name(key: str) -> str:
    return ".".join(part for part in key.split(".") if part != _COMPILED)


def _renamed(state: Any, names: Mapping[str, str]) -> Any:
    """Return a dict of the class, and with the attributes, of ``state`` under other keys."""
    if all(names.get(key, key) == key for key in state):
        return state
    renamed = copy.copy(state)
    renamed.clear()
    renamed.update((names.get(key, key), value) for key, value in state.items())
    return renamed


def _keep_types(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Undo casts of tensors that ``optimizer`` has taken over from ``state``."""
    for own_group, group in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(own_group["params"], group["params"], strict=True):
            own = optimizer.state.get(parameter, {})
            for key, value in state["state"].get(number, {}).items():
                took = own.get(key)
                if is_tensor(value) and is_tensor(took) and took.dtype != value.dtype:
                    own[key] = value.to(took.device)
