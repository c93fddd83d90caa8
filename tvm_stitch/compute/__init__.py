# SPDX-License-Identifier: Apache-2.0
"""Compute-intensive operators: what they are, what computes them, and templates of our own for CPUs."""
