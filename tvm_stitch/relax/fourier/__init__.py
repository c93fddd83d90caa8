# SPDX-License-Identifier: Apache-2.0
"""Discrete Fourier transforms as matmuls with constant matrices, for the importers."""
