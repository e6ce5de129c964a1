"""Numba kernels and the NumPy reference of each; installs and imports as `mpiopt.kernels`.

Nothing here knows of MPI or of the rest of mpiopt.
"""

if __name__ != "mpiopt.kernels":
    # One file under two names would also be two entries in Numba's cache, each poisoning the other.
    raise ImportError("these kernels belong to mpiopt: use `import mpiopt.kernels`")
