# SPDX-License-Identifier: Apache-2.0
"""Tensors of symbolic extents that all importers compute in the same way."""
