# SPDX-License-Identifier: Apache-2.0
"""The description of a model of the zoo, and a PyTorch one as a Relax module with a float64 reference."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tvm
from torch import nn
from tvm.relax.frontend.torch import from_exported_program

Arrays = list[np.ndarray]
Draw = Callable[..., Arrays]
"""Inputs of a model for the sizes of its symbolic extents, if it has some."""


@dataclass(frozen=True)
class Made:
    """A model: the module, its inputs for some sizes, and what ``func`` gives for them, computed in float64.

    The last ``packed`` inputs are one tuple to the function.
    """

    mod: tvm.IRModule
    draw: Draw
    reference: Callable[[Sequence[np.ndarray]], Arrays]
    sizes: tuple[tuple[int, ...], ...] = ((),)
    func: str = "main"
    packed: int = 0

    def arguments(self, inputs: Arrays, device: Any = None) -> list[Any]:
        """Return the arguments of the compiled function: tensors on a device (the CPU by default), and the tuple."""
        tensors = [tvm.runtime.tensor(x, device) for x in inputs]
        if not self.packed:
            return tensors
        return [*tensors[: -self.packed], tuple(tensors[-self.packed :])]


def from_torch(
    model: nn.Module, draw: Draw, dynamic: Any = None, sizes: tuple[tuple[int, ...], ...] = ((),)
) -> Made:
    """Import a PyTorch model by torch.export. ``dynamic`` are its ``dynamic_shapes``, exported at the first sizes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5, generator=generator)
            elif value.is_floating_point() and name.endswith(("bias", "running_mean", "scale")):
                value.uniform_(-0.5, 0.5, generator=generator)
        model.eval()
        inputs = tuple(torch.from_numpy(x) for x in draw(*sizes[0]))
        program = torch.export.export(model, inputs, dynamic_shapes=dynamic)
    mod = from_exported_program(program, keep_params_as_input=False, unwrap_unit_return_tuple=True)
    wide = copy.deepcopy(model).double()

    def reference(arrays: Sequence[np.ndarray]) -> Arrays:
        tensors = [torch.from_numpy(x) for x in arrays]
        with torch.no_grad():
            found = wide(*(x.double() if x.is_floating_point() else x for x in tensors))
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]

    return Made(mod, draw, reference, sizes)


def spread(*extents: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return all combinations of extents."""
    return tuple(itertools.product(*extents))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal numbers in float32."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def tokens(vocabulary: int, *shape: int, low: int = 0) -> np.ndarray:
    """Random token numbers."""
    return np.random.default_rng([vocabulary, *shape]).integers(low, vocabulary, shape)
