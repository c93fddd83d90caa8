# SPDX-License-Identifier: Apache-2.0
"""A converter whose result has another type or shape than PyTorch's is refused."""

from __future__ import annotations

from typing import Any

import torch
from tvm.relax import op as R

from tests.importers.torch.programs import refusal


def test_another_type() -> None:
    def narrow(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit(R.astype(importer.env[node.args[0]], "float16"))

    text = refusal(lambda x: x.sin(), torch.randn(3), custom_convert_map={"sin.default": narrow})
    assert text == "sin.default (sin): its converter returns float16 instead of float32"


def test_another_shape() -> None:
    def flat(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit(R.reshape(importer.env[node.args[0]], [-1]))

    text = refusal(lambda x: x.sin(), torch.randn(3, 2), custom_convert_map={"sin.default": flat})
    assert "its converter returns the shape [6] instead of [3, 2]" in text


def test_a_result_that_is_missing() -> None:
    def first(node: Any, importer: Any) -> Any:
        return importer.env[node.args[0]]

    text = refusal(lambda x: x.sort()[1], torch.randn(3), custom_convert_map={"sort.default": first})
    assert "its converter returns no tensor" in text
