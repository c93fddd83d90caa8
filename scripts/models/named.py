# SPDX-License-Identifier: Apache-2.0
"""Any model of timm, torchvision or transformers by its own name, with random weights: ``timm:convnextv2_tiny``.

Images have the size that the model was trained with. A transformer is named by the type of its configuration, such as
``transformers:roberta``, has that configuration's default sizes, and gets 128 tokens. Only the encoder of a model with
a decoder is run. A model returns its first tensor. ``--size small`` changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from .spec import Model

LENGTH = 128
"""Tokens of a text."""
Build = Callable[[str, str, int], tuple[Any, list[Any]]]
"""Makes (module, inputs) of a name, a size and a batch."""


def named(name: str) -> Model | None:
    """Return the model of a name with a prefix and a colon, None for other names.

    An unknown model of the package fails when it is built.
    """
    package, colon, architecture = name.partition(":")
    build = BUILDERS.get(package)
    if not colon or build is None or not architecture:
        return None
    return Model(name, partial(build, architecture), (package,))


def _timm(architecture: str, size: str, batch: int) -> tuple[Any, list[Any]]:
    import timm
    import torch

    model = timm.create_model(architecture)
    shape = model.pretrained_cfg.get("input_size", (3, 224, 224))
    return model, [torch.randn(batch, *shape)]


def _torchvision(architecture: str, size: str, batch: int) -> tuple[Any, list[Any]]:
    import torch
    from torchvision import models

    known = inspect.signature(models.get_model_builder(architecture)).parameters
    nothing = {key: None for key in ("weights", "weights_backbone") if key in known}  # else it downloads them
    side = 299 if architecture == "inception_v3" else 224
    model = models.get_model(architecture, **nothing)
    return _first_tensor(model), [torch.randn(batch, 3, side, side)]


def _transformers(architecture: str, size: str, batch: int) -> tuple[Any, list[Any]]:
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(architecture)
    model = AutoModel.from_config(config)
    model.config.use_cache = False
    if config.is_encoder_decoder:
        model = model.get_encoder()
    name = getattr(model, "main_input_name", "input_ids")
    if name == "input_ids":
        shape = (batch, LENGTH)
        given = torch.randint(0, config.get_text_config().vocab_size, shape)
    elif name == "pixel_values":
        side = config.image_size
        sides = (side, side) if isinstance(side, int) else tuple(side)
        given = torch.randn(batch, config.num_channels, *sides)
    else:
        raise ValueError(
            f"transformers:{architecture} takes {name}: only models of tokens or images are known"
        )
    return _first_tensor(model, name), [given]


def _first_tensor(model: Any, name: str = "") -> Any:
    """Wrap a model: it takes one tensor, as argument ``name`` if that is given, and returns the first result."""
    import torch

    class FirstTensor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = self.model(**{name: x}) if name else self.model(x)
            if isinstance(result, torch.Tensor):
                return result
            return next(iter(result.values())) if hasattr(result, "values") else result[0]

    return FirstTensor()


BUILDERS: dict[str, Build] = {"timm": _timm, "torchvision": _torchvision, "transformers": _transformers}
"""Builders by the packages that know the models."""
