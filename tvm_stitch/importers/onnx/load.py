# SPDX-License-Identifier: Apache-2.0
"""Import ONNX models into Relax: every node is converted as ONNX defines it, or the model is refused by name."""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Mapping, Sequence

import onnx
import tvm

from ...relax.report.named_spans import with_named_calls
from ...support.quiet import without_native_stderr
from .functions import inlined
from .honoured.check import check_graph
from .importer import Importer
from .schema import versions_of


def from_onnx(
    proto: onnx.ModelProto, shape_dict: Mapping[str, Sequence[int]] | None = None, names: bool = False
) -> tvm.IRModule:
    """Import an ONNX model into a Relax module with the function ``main``.

    Args:
        proto: the model. It is not changed.
        shape_dict: shapes of inputs, to fix symbolic dimensions.
        names: whether calls keep the names of their nodes, in their spans. A node without a name gets its first
            output's name. If a node becomes several calls, the last one has the name.

    Returns:
        The module. Weights are constants.

    Raises:
        UnsupportedModel: if a node has an operator, an attribute's value or an input that no converter honours.
    """
    proto = checked(proto)
    importer = Importer(shape_dict or {}, versions_of(proto), names)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.filterwarnings("ignore", "Renaming name", UserWarning)  # names that are no identifiers
        try:
            mod = importer.imported(proto.graph)
        except Exception as error:
            # The unfinished module lives in the error's frames, and TVM warns when it is destroyed.
            with without_native_stderr():
                importer.forget()
                cause: BaseException | None = error
                while cause is not None:
                    traceback.clear_frames(cause.__traceback__)
                    cause = cause.__context__
            raise
    return with_named_calls(mod, importer.emitted) if names else mod


def checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with bodies in place of functions, of which every node is known to be honoured.

    Raises:
        UnsupportedModel: for the first node that is not.
    """
    proto = inlined(proto)
    check_graph(proto.graph, versions_of(proto))
    return proto
