# SPDX-License-Identifier: Apache-2.0
"""Check that an import honours a whole ONNX model, without importing it."""

from __future__ import annotations

import onnx

from .honoured.check import UnsupportedModel
from .load import checked


def misread(proto: onnx.ModelProto) -> str | None:
    """Return why a model would be refused: the first node outside of the tables, and its part. None means nothing."""
    try:
        checked(proto)
    except UnsupportedModel as error:
        return str(error)
    return None


def check_read(proto: onnx.ModelProto) -> None:
    """Check that every operator and attribute of a model is known to be honoured.

    ``from_onnx`` of this package does the same first. Call this before another importer.

    Args:
        proto: the model.

    Raises:
        UnsupportedModel: with node, operator, domain, attribute and value.
    """
    checked(proto)
