# SPDX-License-Identifier: Apache-2.0
"""Files of models: which importer reads one, and ONNX models with sizes that only ONNX Runtime folds.

``tvm_stitch.compile`` and the command line both ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.failures import error_text, fault_at, reraise_fatal

if TYPE_CHECKING:
    import onnx

    from ..importers.onnx.compare import OnnxModel


class Kind(Enum):
    """The kinds of files."""

    LIBRARY = "a library of a compiled model"
    TORCH = "a program of torch.export"
    ONNX = "an ONNX model"


def kind_of_file(path: Path) -> Kind:
    """Return the kind of a file, by its first bytes. A file that is no other kind has to be an ONNX model.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"\x7fELF":
        return Kind.LIBRARY
    return Kind.TORCH if start == b"PK\x03\x04" or path.suffix == ".pt2" else Kind.ONNX


def read_onnx_file(path: Path) -> onnx.ModelProto:
    """Return the ONNX model of a file, checked, with symbols for dimensions without a size.

    Raises:
        ValueError: if the file is not a valid ONNX model.
    """
    import onnx

    from ..importers.onnx.check import InvalidModel, check_model
    from ..importers.onnx.shapes import with_symbolic_dims

    try:
        proto = with_symbolic_dims(onnx.load(str(path)))
        check_model(proto)
    except InvalidModel as error:
        raise ValueError(f"{path} is not a valid ONNX model: {error}") from None
    except Exception as error:  # protobuf raises its own kinds, and external data may be missing
        reraise_fatal(error)
        raise ValueError(f"{path} is not a valid ONNX model: {error_text(error)}") from None
    return proto


def import_onnx(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None, names: bool = False
) -> OnnxModel:
    """Import an ONNX model. If that fails, import it with sizes that ONNX Runtime folds.

    Args:
        proto: the model, with symbols for dimensions without a size.
        shapes: shapes that replace those of the named inputs, to fix symbolic dimensions.
        names: whether calls keep the names of their ONNX nodes.

    Raises:
        ValueError: if ``shapes`` names no input of the model, or contradicts a fixed dimension.
        UnsupportedModel: if a node has something that no converter honours, in the model as it is.
    """
    from ..importers.onnx.compare import check_shapes, load_onnx
    from ..importers.onnx.shapes import folded

    fixed = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    check_shapes(proto, fixed)
    try:
        return load_onnx(proto, fixed, names)
    except Exception as error:
        reraise_fatal(error)
        if fault_at(error) is not None:  # a fault of this package, not of the model
            raise
        constant = folded(proto, fixed)
        if constant is None:
            raise
        try:
            return load_onnx(constant, fixed, names)
        except Exception as second:
            reraise_fatal(second)
            if fault_at(second) is not None:
                raise
        raise
