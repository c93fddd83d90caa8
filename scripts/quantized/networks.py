# SPDX-License-Identifier: Apache-2.0
"""Small networks of timm and transformers as ONNX models with quantizing and dequantizing pairs."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from models.spec import _import_torchvision, _vary

Inputs = dict[str, np.ndarray]

DRAWS = 3
"""Random inputs that the ranges of tensors are taken from."""


@dataclass(frozen=True)
class Scheme:
    """The kind of a network's quantization: types of activations and weights (``u8``, ``s8``), and kind of scales."""

    activations: str
    weights: str = "s8"
    per_channel: bool = False
    symmetric: bool = False

    def __str__(self) -> str:
        scales = "per channel" if self.per_channel else "per tensor"
        return f"{self.activations}/{self.weights} {scales}{', symmetric' if self.symmetric else ''}"


@dataclass(frozen=True)
class Network:
    """A network with random weights, and its scheme. ``build`` returns the module and its inputs."""

    name: str
    build: Callable[[], tuple[Any, list[Any]]]
    scheme: Scheme


def _image(architecture: str, side: int = 64, **options: Any) -> Callable[[], tuple[Any, list[Any]]]:
    def build() -> tuple[Any, list[Any]]:
        import timm
        import torch

        return timm.create_model(architecture, num_classes=10, **options), [torch.randn(1, 3, side, side)]

    return build


def _mixer() -> tuple[Any, list[Any]]:
    import torch
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(num_classes=10, img_size=64, num_blocks=2, embed_dim=64), [torch.randn(1, 3, 64, 64)]


def _bert() -> tuple[Any, list[Any]]:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    model = BertModel(config)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = model.encoder

        def forward(self, x: Any) -> Any:
            return self.encoder(x)[0]

    return Encoder(), [torch.randn(1, 24, 64)]


def _segformer() -> tuple[Any, list[Any]]:
    import torch
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], decoder_hidden_size=32, num_labels=5
    )
    model = SegformerForSemanticSegmentation(config)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(pixel_values=x, return_dict=False)[0]

    return Logits(), [torch.randn(1, 3, 64, 64)]


_VIT = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4}
NETWORKS = (
    Network("resnet18", _image("resnet18"), Scheme("u8")),
    Network("resnet18", _image("resnet18"), Scheme("s8", per_channel=True, symmetric=True)),
    Network("mobilenetv2", _image("mobilenetv2_050"), Scheme("u8", per_channel=True)),
    Network("mobilenetv3", _image("mobilenetv3_small_050"), Scheme("s8")),
    Network("mobilenetv4", _image("mobilenetv4_conv_small", 96), Scheme("u8", per_channel=True)),
    Network("efficientnet", _image("test_efficientnet"), Scheme("u8", "u8")),
    Network("regnet", _image("regnetx_002"), Scheme("s8", per_channel=True)),
    Network("convnext", _image("test_convnext"), Scheme("u8", per_channel=True)),
    Network("vit", _image("vit_base_patch16_224", **_VIT), Scheme("u8")),
    Network("vit", _image("vit_base_patch16_224", **_VIT), Scheme("s8", symmetric=True)),
    Network("mixer", _mixer, Scheme("u8", per_channel=True)),
    Network("bert", _bert, Scheme("s8", per_channel=True, symmetric=True)),
    Network("segformer", _segformer, Scheme("u8")),
)


def quantized(network: Network, seed: int = 0) -> tuple[onnx.ModelProto, Inputs]:
    """Return a quantized model, and inputs that its ranges were not taken from."""
    import torch

    _import_torchvision()
    torch.manual_seed(seed)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        module, inputs = network.build()
        _vary(module.eval())
        path = str(Path(folder, "model.onnx"))
        with _silent():
            torch.onnx.export(module, tuple(inputs), path, dynamo=False, opset_version=17)
        names = [value.name for value in onnx.load(path).graph.input]
        draws = [{n: torch.randn_like(x).numpy() for n, x in zip(names, inputs)} for _ in range(DRAWS + 1)]
        return quantized_file(path, network.scheme, draws[:-1]), draws[-1]


def quantized_file(path: str, scheme: Scheme, draws: list[Inputs]) -> onnx.ModelProto:
    """Return the model of a file, quantized by ONNX Runtime with the ranges of some inputs.

    Args:
        path: a file of an ONNX model of floats.
        scheme: types and scales.
        draws: inputs.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(draws)

        def get_next(self) -> Inputs | None:
            return next(self.left, None)

    types = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder, _silent():
        written = str(Path(folder, "quantized.onnx"))
        quantize_static(
            path,
            written,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=scheme.per_channel,
            activation_type=types[scheme.activations],
            weight_type=types[scheme.weights],
            extra_options={"ActivationSymmetric": scheme.symmetric},
        )
        return onnx.load(written)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
