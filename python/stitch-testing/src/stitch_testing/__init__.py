# SPDX-License-Identifier: Apache-2.0
"""Tools that check stitched code: random graphs, float64 references, planted bugs. No wheel of tvm_stitch has them."""
