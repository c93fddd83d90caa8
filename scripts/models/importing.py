# SPDX-License-Identifier: Apache-2.0
"""From a PyTorch model to a Relax module, in float32 or in a half type."""

from __future__ import annotations

import tvm

from tvm_stitch.relax.precision.half import in_half_precision

from .spec import Made


def import_torch(made: Made, dtype: str = "float32", products: str = "float32") -> tvm.IRModule:
    """Import a model into Relax, with its parameters bound as constants. Floating-point inputs have ``dtype``.

    ``products`` is the result type of products and convolutions in a half model: "float32", or "half".
    """
    import torch

    from tvm_stitch.importers.torch import from_exported_program

    with torch.no_grad():
        program = torch.export.export(made.module, tuple(made.inputs))
    mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    return mod if dtype == "float32" else in_half_precision(mod, dtype, products)
