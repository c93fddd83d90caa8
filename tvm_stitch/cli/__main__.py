# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_stitch.cli``: the command line without the installed command."""

import sys

from .program import main

sys.exit(main())
