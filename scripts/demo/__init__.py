# SPDX-License-Identifier: Apache-2.0
"""The parts of ``scripts/run_demo.py``: output, contenders, and one kernel before and after."""
