# SPDX-License-Identifier: Apache-2.0
"""Passes over scheduled kernels: argument checks, serial tasks, embedded libraries."""
