# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums in registers over the whole reduction dimension.

It keeps ``rows x columns`` sums: 8 x 2 vectors of AVX-512's 32 registers, 6 x 2 of 16. The tile is in :mod:`.tile`,
and :mod:`.sums` and :mod:`.dots` compute it. Long reductions have blocks (:mod:`.reduction_blocks`). Each tile fetches
a part of the next weights (:mod:`.prefetch`).
"""
