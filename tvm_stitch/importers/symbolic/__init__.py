# SPDX-License-Identifier: Apache-2.0
"""Tensors that all importers compute in the same way, most of them of symbolic extents."""
