# SPDX-License-Identifier: Apache-2.0
"""A model of the benchmark: its name, its builder, and the packages that it needs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = ("full", "small")
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Model:
    """A PyTorch model with random weights, at two sizes.

    Args:
        name: its name on the command line.
        build: makes (module, inputs) of a size and a batch. Weights and inputs come from torch's own generator, so a
            seed fixes both.
        packages: packages besides PyTorch, by pip's names.
        note: a sentence on its peculiarity.
    """

    name: str
    build: Callable[[str, int], tuple[Any, Sequence[Any]]]
    packages: tuple[str, ...] = ()
    note: str = ""


@dataclass
class Made:
    """A model ready for every contender: an evaluating module of float32 parameters, and its inputs."""

    module: Any
    inputs: list[Any]


class MissingPackages(Exception):
    """Packages that chosen models need are not installed: the message names them."""


def _import_torchvision() -> None:
    """Import torchvision, as timm and transformers do, even if its operators' library does not load.

    torchvision's usual wheel fails so with a PyTorch without CUDA. Its import then fails at a file that describes these
    operators, which no model here uses.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        described = "torchvision._meta_registrations"
        sys.modules[described] = types.ModuleType(described)
        importlib.import_module("torchvision")


def make(model: Model, size: str, batch: int, dtype: str, seed: int = 0) -> Made:
    """Build a model with seeded weights and inputs, the same in every process.

    For a half type, parameters and inputs are rounded to it and stored as float32. The error of a contender is then
    that of its arithmetic, not of its inputs.
    """
    import torch

    if model.packages:
        _import_torchvision()
    torch.manual_seed(seed)
    with torch.no_grad():
        module, inputs = model.build(size, batch)
        module = module.eval().requires_grad_(False)
        _vary(module)
        made = list(inputs)
        if dtype != "float32":
            half = getattr(torch, dtype)
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(tensor.to(half))
            made = [x.to(half).float() if x.is_floating_point() else x for x in made]
    return Made(module, made)


def _vary(module: Any) -> None:
    """Replace ones and zeros of a fresh model by random numbers: they hide errors (or whole branches)."""
    import torch

    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not tensor.is_floating_point():
            continue
        if tensor.dim() != 1:
            if not tensor.any():
                torch.nn.init.normal_(tensor, 0.0, 0.02)
            continue
        scales = name.rsplit(".", 1)[-1] in ("weight", "gamma", "running_var")
        if scales:
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
        else:
            torch.nn.init.normal_(tensor, 0.0, 0.1)
