# SPDX-License-Identifier: Apache-2.0
"""Fold and simplify what depends on constants alone."""
