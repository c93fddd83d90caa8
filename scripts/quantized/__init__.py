# SPDX-License-Identifier: Apache-2.0
"""Quantized networks, their runs by several compilers, and the tensors in which the runs differ."""
