# SPDX-License-Identifier: Apache-2.0
"""Emit CUDA kernels from plans: rows, stages, reductions across lanes, warps, blocks and rows, barriers."""
