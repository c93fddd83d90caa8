# SPDX-License-Identifier: Apache-2.0
"""Emit functions for an llvm CPU from plans: parallel tasks, vectors of lanes."""
