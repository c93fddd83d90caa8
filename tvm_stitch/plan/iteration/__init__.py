# SPDX-License-Identifier: Apache-2.0
"""Iteration: a domain of rows and columns, operators aligned with it, and the loops over a row."""
