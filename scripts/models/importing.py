# SPDX-License-Identifier: Apache-2.0
"""From a PyTorch model to a Relax module, in float32 or in a half type.

TVM's importer takes no half models (its products ask for float32 results), so a float32 one is imported and turned by
`ToMixedPrecision`: products, convolutions and what is element-wise in half, norms and softmaxes in float32.
The pass knows float16 only; bfloat16 is its result with the type replaced.
"""

from __future__ import annotations

import tvm
from tvm import relax

from .spec import Made


def import_torch(made: Made, dtype: str = "float32", products: str = "float32") -> tvm.IRModule:
    """The Relax module of a model, its parameters bound as constants; inputs that float have ``dtype``.

    ``products`` is what products and convolutions give in a half model: "float32", or "half".
    """
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    with torch.no_grad():
        program = torch.export.export(made.module, tuple(made.inputs))
    mod = from_exported_program(program, keep_params_as_input=False, unwrap_unit_return_tuple=True)
    return mod if dtype == "float32" else in_half(mod, dtype, products)


def in_half(mod: tvm.IRModule, dtype: str, products: str) -> tvm.IRModule:
    """A float32 module in mixed precision of float16 or bfloat16."""
    names = [var.name for var in mod["main"].params if getattr(var.ty, "dtype", None) == "float32"]
    mod = relax.transform.ConvertToDataflow(min_size=1)(mod)
    mod = relax.transform.ToMixedPrecision("float16" if products == "half" else "float32", names)(mod)
    if dtype == "bfloat16":
        # Types and attributes name it in quotes, which encoded constants do not hold.
        mod = tvm.ir.load_json(tvm.ir.save_json(mod).replace('"float16"', '"bfloat16"'))
    return mod
