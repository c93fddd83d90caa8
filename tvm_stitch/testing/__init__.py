# SPDX-License-Identifier: Apache-2.0
"""Tools for testing stitched code."""
