# SPDX-License-Identifier: Apache-2.0
"""The former name of the importer that keeps the paths of modules. The importer now always keeps them."""

from __future__ import annotations

from typing import Any

import tvm

from .program import from_exported_program


def from_exported_program_named(program: Any, **options: Any) -> tvm.IRModule:
    """Return ``from_exported_program(program, **options)`` of :mod:`tvm_stitch.importers.torch`.

    Args:
        program: a ``torch.export.ExportedProgram``.
        options: those of that function.

    Raises:
        Unsupported: if the program has operators that are not imported.
    """
    return from_exported_program(program, **options)
