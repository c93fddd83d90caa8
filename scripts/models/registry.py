# SPDX-License-Identifier: Apache-2.0
"""The models by name. Their packages are imported when one is made."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from . import language, vision
from .named import named
from .spec import MissingPackages, Model


def _recurrent(kind: str) -> Model:
    def build(size: str, batch: int) -> tuple[Any, list[Any]]:
        from . import networks

        return networks.recurrent(kind, size, batch)

    return Model(kind, build, note="2 layers, hidden 512, 32 steps, unrolled")


def _crnn(size: str, batch: int) -> tuple[Any, list[Any]]:
    from . import networks

    return networks.crnn(size, batch)


def _crnn_layers(size: str, batch: int) -> tuple[Any, list[Any]]:
    from . import networks

    return networks.crnn(size, batch, written_out=False)


def _dien(size: str, batch: int) -> tuple[Any, list[Any]]:
    from . import networks

    return networks.dien(size, batch)


def _unet_block(size: str, batch: int) -> tuple[Any, list[Any]]:
    from . import networks

    return networks.unet_block(size, batch)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        *language.MODELS,
        *vision.MODELS,
        _recurrent("lstm"),
        _recurrent("gru"),
        Model("unet-block", _unet_block, note="320 channels, 32 x 32, 8 heads"),
        Model("crnn", _crnn, note="a 32 x 128 image, 32 steps, two layers of two LSTMs, unrolled"),
        Model("crnn-layers", _crnn_layers, note="the same with PyTorch's LSTM layers"),
        Model("dien", _dien, note="256 rows of 50 clicks, a GRU layer, an unrolled GRU with attention"),
    )
}


def find(name: str) -> Model | None:
    """Return the model of a name of this table, or of a package's name such as ``timm:convnextv2_tiny``, or None."""
    return MODELS.get(name) or named(name)


def check_packages(models: Sequence[Model]) -> None:
    """Check that all packages of the models are installed, without importing them.

    Raises:
        MissingPackages: naming everything that is missing.
    """
    wanted = dict.fromkeys(package for model in models for package in ("torch", *model.packages))
    missing = [package for package in wanted if importlib.util.find_spec(package) is None]
    if missing:
        names = ", ".join(model.name for model in models if {"torch", *model.packages} & set(missing))
        raise MissingPackages(f"not installed, and needed for {names}: pip install {' '.join(missing)}")
