# SPDX-License-Identifier: Apache-2.0
"""Workloads that only checks use, and the graphs and plans of named workloads as text."""
