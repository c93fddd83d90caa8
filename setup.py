# SPDX-License-Identifier: Apache-2.0
"""Packaging of tvm-stitch: metadata and dependencies (tool settings are in pyproject.toml)."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# The Relay-era TVM itself comes from `bitblas==0.1.0.post1` installed with --no-deps (see the Makefile):
# its own requirements would pull in much that TVM does not need. These are what that TVM does need.
RELAY_RUNTIME = [
    "attrs",
    "cloudpickle",
    "decorator",
    "nvidia-cuda-nvrtc-cu12==12.4.127",
    "nvidia-cuda-runtime-cu12==12.4.127",
    "psutil",
    "scipy",
    "setuptools<81",
    "tornado",
    "typing_extensions",
]

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "tvm_stitch/__init__.py").read_text(), re.M)[1]

setup(
    name="tvm-stitch",
    version=VERSION,
    description="Stitches memory-intensive operators of a model into single kernels, in Apache TVM",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "tvm_stitch/report/vendor/LICENSES.txt"],
    classifiers=[
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Software Development :: Compilers",
    ],
    python_requires=">=3.10",
    # A plain list of names would miss a package directory that an editable install sees only later.
    packages=sorted({"tvm_stitch", *find_packages(include=["tvm_stitch", "tvm_stitch.*"])}),
    py_modules=["tvm_stitch_command"],
    package_data={
        "tvm_stitch": [
            *("py.typed", "**/*.h", "**/*.cc", "**/*.cuh"),
            *("report/assets/*", "report/vendor/*"),
        ]
    },
    install_requires=[
        "apache-tvm==0.27.*",
        # Newer ffi releases import and compile, but MetaSchedule's tuner crashes in ToJSONGraph with them.
        "apache-tvm-ffi==0.1.14.post1",
        "ml_dtypes",
        "numpy",
    ],
    extras_require={
        # cuBLASLt, which computes matrix products on a GPU; PyTorch's CUDA builds bring it too.
        "cuda12": ["nvidia-cublas-cu12", "nvidia-cudnn-cu12"],
        "cuda13": ["nvidia-cublas", "nvidia-cudnn-cu13"],
        "onnx": ["onnx", "onnxruntime"],
        "tune": ["xgboost"],
        "relay": RELAY_RUNTIME,
        "dev": [
            "hypothesis",
            "mypy",
            "onnx",
            "onnxruntime",
            "pre-commit",
            "pytest",
            "pytest-xdist",
            "rich",
            "ruff",
            "torch",
        ],
    },
    entry_points={"console_scripts": ["tvm-stitch = tvm_stitch_command:main"]},
    zip_safe=False,
)
