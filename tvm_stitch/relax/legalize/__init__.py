# SPDX-License-Identifier: Apache-2.0
"""Legalize operators whose TIR from TVM cannot be stitched or is wrong."""
