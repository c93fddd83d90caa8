# SPDX-License-Identifier: Apache-2.0
"""Import TVM without PyTorch. TVM's bindings import PyTorch first if it is installed, though few commands need it.

With PyTorch, ``import tvm`` takes 2.5 s of one core, and without it 0.8 s.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

TORCH, BINDINGS = "torch", "tvm_ffi"


def import_without_torch(module: str) -> ModuleType:
    """Import a module while PyTorch cannot be imported, unless PyTorch or TVM's bindings are imported already.

    PyTorch may be imported later. The bindings then still take its tensors as arguments, but not its dtypes.
    """
    if TORCH in sys.modules or BINDINGS in sys.modules:
        return importlib.import_module(module)
    sys.modules[TORCH] = None  # type: ignore[assignment]
    try:
        return importlib.import_module(module)
    finally:
        del sys.modules[TORCH]
