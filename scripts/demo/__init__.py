# SPDX-License-Identifier: Apache-2.0
"""The parts of ``scripts/run_demo.py``: what is shown, what is timed, and one kernel before and after."""
