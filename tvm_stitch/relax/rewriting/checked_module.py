# SPDX-License-Identifier: Apache-2.0
"""Check that a model is a Relax module, or raise an error that says how to convert it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

_TORCH = "import it with torch.export.export and tvm_stitch.importers.torch.from_exported_program"


def checked_module(mod: Any) -> tvm.IRModule:
    """Return ``mod`` if it is an IRModule.

    Raises:
        TypeError: when it is anything else.
    """
    if isinstance(mod, tvm.IRModule):
        return mod
    kind = f"{type(mod).__module__}.{type(mod).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        f"a model must be a Relax IRModule, or one of PyTorch or ONNX, not {kind}: {_how(mod, kind)}"
    )


def _how(mod: Any, kind: str) -> str:
    if isinstance(mod, relax.Function):
        return "tvm.IRModule.from_expr(function) makes one"
    if isinstance(mod, relax.frontend.nn.Module):
        return "its export_tvm gives one"
    if "ModelProto" in kind:
        return "tvm_stitch.importers.onnx.load.from_onnx makes one"
    if kind.startswith("torch.") or hasattr(mod, "state_dict"):
        return _TORCH
    return "an importer of tvm.relax.frontend, TVMScript or a BlockBuilder makes one"
