# SPDX-License-Identifier: Apache-2.0
"""References in float64 and error bounds of operators."""
