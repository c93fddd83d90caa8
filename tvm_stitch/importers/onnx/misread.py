# SPDX-License-Identifier: Apache-2.0
"""Check ONNX models without importing them, for the import of this package and for TVM's own."""

from __future__ import annotations

import onnx

from .functions import inlined
from .honoured.check import UnsupportedModel, check_graph
from .load import checked
from .schema import versions_of


def misread(proto: onnx.ModelProto) -> str | None:
    """Return why TVM's own ``from_onnx`` is not known to honour a model, or None if it is.

    ``tvm_stitch.importers.onnx.load.from_onnx`` takes more models, with converters of this package.

    Args:
        proto: the model.

    Returns:
        The first node that TVM's converters are not known to honour, its attribute, and what to do.
    """
    proto = inlined(proto)
    try:
        check_graph(proto.graph, versions_of(proto), {})
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
