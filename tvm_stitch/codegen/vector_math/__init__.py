# SPDX-License-Identifier: Apache-2.0
"""Math functions for llvm CPUs as expressions that vectorize, with stated errors."""

from .errors import MATH_ERROR
from .exponential import exp_of_negative
from .extrema import keeping_nan
from .lowering import lower_math
from .scope import Scope

__all__ = ["MATH_ERROR", "Scope", "exp_of_negative", "keeping_nan", "lower_math"]
