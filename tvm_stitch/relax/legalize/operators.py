# SPDX-License-Identifier: Apache-2.0
"""Legalization: the operators that this package legalizes otherwise than TVM, and the passes that do it."""

from __future__ import annotations

import tvm

from ...repairs.legalize.centred_norms import CENTRED_NORMS
from ...repairs.legalize.keep_zeros import KeepZeros
from ...repairs.legalize.slice_scatters import SLICE_SCATTERS
from ...repairs.legalize.symbolic_slices import SYMBOLIC_SLICES
from ...repairs.legalize.take import TAKES
from ...support.one_at_a_time import exclusively
from ..quantize.elementwise import ELEMENTWISE_QUANTIZATION
from .arg_reductions import ARG_REDUCTIONS
from .gathers import GATHERS
from .grid_samples import GRID_SAMPLES
from .input_dilation import TRANSPOSED_CONVOLUTIONS
from .repeated import LegalizeOnce

LEGALIZED = (
    ARG_REDUCTIONS
    | CENTRED_NORMS
    | ELEMENTWISE_QUANTIZATION
    | GATHERS
    | GRID_SAMPLES
    | SLICE_SCATTERS
    | SYMBOLIC_SLICES
    | TAKES
    | TRANSPOSED_CONVOLUTIONS
)
"""Operators that this package legalizes otherwise than TVM."""


def legalize(name: str) -> tvm.transform.Pass:
    """Return the pass ``name``, which replaces operators by calls of functions."""
    return exclusively([LegalizeOnce(LEGALIZED)], name)


def legalize_weights() -> list[tvm.transform.Pass]:
    """Return the passes that legalize operators which compute weights from constants."""
    return [KeepZeros(), legalize("LegalizeWeights")]
