# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of Relay modules by the CPU templates."""
