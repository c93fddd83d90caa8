# SPDX-License-Identifier: Apache-2.0
"""Math functions for llvm CPUs as expressions that vectorize, with stated errors."""

from tvm_stitch.codegen.vector_math.errors import MATH_ERROR
from tvm_stitch.codegen.vector_math.exponential import exp_of_negative
from tvm_stitch.codegen.vector_math.extrema import keeping_nan
from tvm_stitch.codegen.vector_math.lowering import lower_math
from tvm_stitch.codegen.vector_math.scope import Scope

__all__ = ["MATH_ERROR", "Scope", "exp_of_negative", "keeping_nan", "lower_math"]
