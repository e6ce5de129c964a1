"""Installs the top-level folder kernels/ as mpiopt.kernels; the rest is in pyproject.toml.

The mapping serves built distributions, the committed link mpiopt/kernels serves the checkout; see
docs/decisions/0002-kernels-at-top-level.md.
"""

from setuptools import find_packages, setup

# A checkout without symbolic links, or an unpacked sdist, has no mpiopt/kernels to be found.
packages = {*find_packages(include=["mpiopt", "mpiopt.*"]), "mpiopt.kernels"}

setup(
    packages=sorted(packages),
    package_dir={"mpiopt.kernels": "kernels"},
    package_data={"mpiopt": ["py.typed"]},
)
