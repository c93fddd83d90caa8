# SPDX-License-Identifier: Apache-2.0
"""Products of few rows, which wait for their weights: memory-intensive, so scopes take them."""
