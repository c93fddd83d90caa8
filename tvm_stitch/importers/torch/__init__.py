# SPDX-License-Identifier: Apache-2.0
"""Import PyTorch's exported programs, with converters of operators that TVM's importer misreads or lacks.

The docstring of a converter gives the arguments of PyTorch's operator, and its results if they need a word.
"""

from .importing.constants import (
    constant_inputs,
    constant_results,
    integer_results,
    tensor_inputs,
    tensor_results,
)
from .importing.guards import conditions_of
from .importing.state import initial_state
from .importing.unsupported import Unsupported
from .program import from_exported_program

__all__ = [
    "Unsupported",
    "conditions_of",
    "constant_inputs",
    "constant_results",
    "from_exported_program",
    "initial_state",
    "integer_results",
    "tensor_inputs",
    "tensor_results",
]
