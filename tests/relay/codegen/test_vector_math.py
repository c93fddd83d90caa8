# SPDX-License-Identifier: Apache-2.0
"""The tests of vector math hold under a TVM with Relay as well: the same errors, special cases and vector code."""

from tests.codegen.test_vector_math import *  # noqa: F403
