# SPDX-License-Identifier: Apache-2.0
"""Matrix products by AMX: its instructions, panels packed by tasks, and the tasks."""
