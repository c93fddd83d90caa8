# SPDX-License-Identifier: Apache-2.0
"""Plans become functions for an llvm CPU: parallel tasks, vectors of lanes."""
