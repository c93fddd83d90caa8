# SPDX-License-Identifier: Apache-2.0
"""Outline stitch ops, merge and schedule them, and leave the remaining operators to TVM's fusion."""
