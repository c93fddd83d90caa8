# SPDX-License-Identifier: Apache-2.0
"""Repair TVM's own schedules, before and after TVM applies them. Nothing here knows Relax."""
