"""Communication-efficient collectives and distributed optimisation on MPI."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpiopt.communicator import Communicator as Communicator
    from mpiopt.errors import BadBufferError as BadBufferError
    from mpiopt.errors import CollectiveError as CollectiveError
    from mpiopt.errors import CollectiveTimeout as CollectiveTimeout
    from mpiopt.errors import FreedCommunicatorError as FreedCommunicatorError
    from mpiopt.errors import MismatchError as MismatchError
    from mpiopt.functions import allgather as allgather
    from mpiopt.functions import allreduce as allreduce
    from mpiopt.functions import alltoall as alltoall
    from mpiopt.functions import barrier as barrier
    from mpiopt.functions import bcast as bcast
    from mpiopt.functions import gather as gather
    from mpiopt.functions import reduce as reduce
    from mpiopt.functions import reduce_scatter as reduce_scatter
    from mpiopt.functions import scatter as scatter

__version__ = "0.1.0"

_HOMES = {
    "mpiopt.communicator": ("Communicator",),
    "mpiopt.errors": (
        "BadBufferError",
        "CollectiveError",
        "CollectiveTimeout",
        "FreedCommunicatorError",
        "MismatchError",
    ),
    "mpiopt.functions": (
        "allgather",
        "allreduce",
        "alltoall",
        "barrier",
        "bcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "scatter",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    # On first use: what needs MPI starts MPI, and `import mpiopt` alone should not.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mpiopt' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
