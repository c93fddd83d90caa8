# SPDX-License-Identifier: Apache-2.0
"""Matrix products and convolutions of Relay modules by the CPU templates."""
