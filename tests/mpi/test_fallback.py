"""What mpiopt does not handle goes to mpi4py unchanged, and what it is derived from stays true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiopt import Communicator

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank


def calls_of(comm: Any) -> int:
    return sum(row["calls"] for row in comm.ledger.rows())


def test_a_communicator_is_an_intracomm_of_the_same_group(comm: Any, agree: Any) -> None:
    same = MPI.Comm.Compare(comm, WORLD) == MPI.CONGRUENT
    agree(isinstance(comm, MPI.Intracomm) and same and (comm.size, comm.rank) == (SIZE, RANK))


def test_derived_datatypes_go_to_mpi(comm: Any, agree: Any) -> None:
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    grid = np.zeros((3, 4))
    if RANK == 0:
        grid[:, 0] = 1, 2, 3
    comm.Bcast([grid, 1, column], 0)
    wanted = np.zeros((3, 4))
    wanted[:, 0] = 1, 2, 3
    column.Free()
    agree(np.array_equal(grid, wanted) and calls_of(comm) == 0)


def test_user_defined_ops_go_to_mpi(comm: Any, agree: Any) -> None:
    def add_twice(a: Any, b: Any, _: MPI.Datatype) -> None:
        x, y = np.frombuffer(a, dtype=np.int64), np.frombuffer(b, dtype=np.int64)
        y[:] = x + y

    op = MPI.Op.Create(add_twice, commute=True)
    got = np.zeros(4, dtype=np.int64)
    comm.Allreduce(np.full(4, RANK + 1), got, op)
    op.Free()
    agree(bool(np.all(got == SIZE * (SIZE + 1) // 2)) and calls_of(comm) == 0)


def test_pair_ops_and_long_doubles_go_to_mpi(comm: Any, agree: Any) -> None:
    pair = np.zeros(1, dtype=[("value", "f8"), ("rank", "i4")])
    pair["value"], pair["rank"] = -RANK, RANK
    comm.Allreduce(MPI.IN_PLACE, [pair, 1, MPI.DOUBLE_INT], MPI.MINLOC)
    long = np.full(3, RANK, dtype=np.longdouble)
    comm.Allreduce(MPI.IN_PLACE, long, MPI.SUM)
    right = pair["rank"][0] == SIZE - 1 and np.all(long == SIZE * (SIZE - 1) // 2)
    agree(bool(right) and calls_of(comm) == 0, f"{pair} {long}")


def test_mpi_s_own_algorithm_can_be_asked_for(comm: Any, agree: Any) -> None:
    x = np.ones(5)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="mpi")
    request = comm.Iallreduce(MPI.IN_PLACE, x, algorithm="mpi")
    request.Wait()
    agree(bool(np.all(x == SIZE * SIZE)) and calls_of(comm) == 0)


def test_objects_go_to_mpi4py(comm: Any, agree: Any) -> None:
    got = comm.allreduce({RANK}, op=lambda a, b: a | b)
    everybody = comm.allgather(("rank", RANK))
    said = comm.bcast({"from": RANK} if RANK == 0 else None)
    right = got == set(range(SIZE)) and len(everybody) == SIZE and said == {"from": 0}
    agree(right and calls_of(comm) == 0)


def test_point_to_point_works_as_ever(comm: Any, agree: Any) -> None:
    got, right, left = np.zeros(3), (RANK + 1) % SIZE, (RANK - 1) % SIZE
    comm.Sendrecv(np.full(3, float(RANK)), right, 3, got, left, 3)
    agree(bool(np.all(got == left)))


def works(comm: Any, ranks: int) -> bool:
    x = np.ones(17)
    comm.Allreduce(MPI.IN_PLACE, x)
    request = comm.Iallreduce(MPI.IN_PLACE, x)
    request.Wait()
    return isinstance(comm, Communicator) and bool(np.all(x == ranks * ranks))


def test_duplicates_are_communicators_with_the_same_options(agree: Any) -> None:
    comm = Communicator(WORLD, timeout=25.0)
    said = []
    for make in (comm.Dup, comm.Clone, lambda: comm.Dup_with_info(MPI.INFO_ENV)):
        made = make()
        if not works(made, SIZE) or made.timeout != 25.0:
            said.append(repr(make))
        made.Free()
    comm.Free()
    agree(not said, f"{said}")


def test_a_duplicate_made_in_the_background_works(comm: Any, agree: Any) -> None:
    made, request = comm.Idup()
    request.Wait()
    x = np.ones(17)
    made.Allreduce(MPI.IN_PLACE, x)
    made.Free()
    agree(bool(np.all(x == SIZE)))


def test_splits_are_communicators_of_their_part_or_null(comm: Any, agree: Any) -> None:
    half = comm.Split(RANK % 2, RANK)
    mates = len(range(RANK % 2, SIZE, 2))
    right = half.size == mates and works(half, mates)
    half.Free()
    alone = comm.Split(0 if RANK == 0 else MPI.UNDEFINED)
    if RANK == 0:
        right = right and works(alone, 1)
        alone.Free()
    else:
        right = right and alone == MPI.COMM_NULL
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    right = right and works(node, node.size)
    node.Free()
    agree(right)


def test_groups_make_communicators_for_their_members(comm: Any, agree: Any) -> None:
    group = comm.Get_group().Incl(range((SIZE + 1) // 2))
    member = group.size > RANK
    made, right = comm.Create(group), True
    if member:
        right = works(made, group.size)
        made.Free()
        made = comm.Create_group(group)
        right = right and works(made, group.size)
        made.Free()
    else:
        right = made == MPI.COMM_NULL
    agree(right)


def test_only_intracommunicators_are_taken(agree: Any) -> None:
    refused = 0
    for wrong in (MPI.COMM_NULL, MPI.Intercomm(), "world"):
        with pytest.raises(TypeError, match="intra-communicator"):
            Communicator(wrong)
        refused += 1
    agree(refused == 3)
