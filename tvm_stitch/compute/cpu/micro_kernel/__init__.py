# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums in registers over the whole reduction dimension.

It keeps ``rows x columns`` sums: 8 x 2 vectors of AVX-512's 32 registers, 6 x 2 of 16. :mod:`.tile` keeps them,
:mod:`.sums` and :mod:`.dots` compute them, :mod:`.depth_blocks` divides long reductions, and :mod:`.prefetch` fetches
the next weights.
"""
