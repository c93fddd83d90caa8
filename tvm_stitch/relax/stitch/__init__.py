# SPDX-License-Identifier: Apache-2.0
"""Outline stitch ops, merge, schedule, and hand the rest to TVM's fusion."""
