# SPDX-License-Identifier: Apache-2.0
"""Bounds: what a kernel may compute again, and how long its expressions and indices may get."""
