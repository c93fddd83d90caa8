# SPDX-License-Identifier: Apache-2.0
"""Plans become CUDA kernels: rows, stages, reductions across lanes, warps, blocks and rows, barriers."""
