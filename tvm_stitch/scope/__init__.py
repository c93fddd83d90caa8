# SPDX-License-Identifier: Apache-2.0
"""Choose the operators that form a stitch op (AStitch 4.1): classify, compose, identify, join horizontally."""
