# SPDX-License-Identifier: Apache-2.0
"""What the comparisons of stitched with tuned builds share: variants, measuring, tables, plots and disclosure."""
