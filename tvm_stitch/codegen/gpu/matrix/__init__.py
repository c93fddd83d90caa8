# SPDX-License-Identifier: Apache-2.0
"""Sums of products of few rows on matrix units."""
