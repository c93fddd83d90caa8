# SPDX-License-Identifier: Apache-2.0
"""Repair what TVM's own schedules compute, before and after TVM applies them; nothing here knows Relax."""
