# SPDX-License-Identifier: Apache-2.0
"""Restore names that newer releases of other packages dropped, and that TVMs with Relay still import."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def apply() -> None:
    """Install every shim of this module, once. None of them imports the package that it serves."""
    if not any(isinstance(finder, OnnxMappingFinder) for finder in sys.meta_path):
        # It comes last, so that an onnx that has the module itself takes precedence.
        sys.meta_path.append(OnnxMappingFinder())


class OnnxMappingFinder(Loader):
    """Meta-path finder and loader of ``onnx.mapping``, which onnx 1.19 dropped.

    ``relay.frontend.from_onnx`` looks up the dtypes of tensors and casts in its table. The same data are in
    ``onnx.helper.tensor_dtype_to_np_dtype`` now.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of ``onnx.mapping``, or None for any other name."""
        return ModuleSpec(name, self, origin="tvm_relay_toolchain") if name == "onnx.mapping" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None, for an ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the tables: from onnx's element types to NumPy's dtypes, and back."""
        from onnx import TensorProto, helper

        dtypes: dict[int, Any] = {}
        for element_type in TensorProto.DataType.values():
            if element_type == TensorProto.UNDEFINED:
                continue
            try:
                dtypes[element_type] = helper.tensor_dtype_to_np_dtype(element_type)
            except KeyError:  # an element type without a dtype: not in the table, as it used to be
                continue
        back: dict[Any, int] = {}
        for element_type, dtype in dtypes.items():
            back.setdefault(dtype, element_type)
        module.TENSOR_TYPE_TO_NP_TYPE = dtypes  # type: ignore[attr-defined]
        module.NP_TYPE_TO_TENSOR_TYPE = back  # type: ignore[attr-defined]
