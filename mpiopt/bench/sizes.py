"""Turns what a user writes (8, 64M, a factor) into the byte counts of a sweep.

Units are binary, as in nccl-tests and OSU: K = 1024, M = 1024**2, G = 1024**3.
"""

from __future__ import annotations

import re

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from '8', '64K', '64M', '1GiB'.

    >>> parse_size("64M"), parse_size("4 KiB"), parse_size("8")
    (67108864, 4096, 8)
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(I?B)?", text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with K, M or G: 64M")
    return int(match[1]) * UNITS[match[2]]


def format_size(size_bytes: int) -> str:
    """The shortest exact form of a byte count.

    >>> format_size(67108864), format_size(1536), format_size(1000)
    ('64M', '1536', '1000')
    """
    for unit, scale in reversed(UNITS.items()):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit}"
    return str(size_bytes)


def sweep(begin: int, end: int, factor: int) -> list[int]:
    """begin, begin * factor, ... below end, and end itself.

    >>> sweep(8, 100, 4)
    [8, 32, 100]
    """
    if begin < 1 or end < begin:
        raise ValueError(f"sizes go from {begin} to {end} bytes; need 1 <= begin <= end")
    if factor < 2:
        raise ValueError(f"factor is {factor}; it must be 2 or more")
    sizes = []
    size = begin
    while size < end:
        sizes.append(size)
        size *= factor
    return [*sizes, end]
