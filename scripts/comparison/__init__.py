# SPDX-License-Identifier: Apache-2.0
"""Shared code of the comparisons of stitched and tuned builds: variants, measuring, tables, plots, disclosure."""
