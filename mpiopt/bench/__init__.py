"""Turns (collective, algorithms, sizes) into rows: times, rates and errors beside MPI's own.

In the order in which data flows: `sizes` (what to measure), `work` (buffers and calls), `trials`
(times), `stats` (numbers from times), `rows` (records, JSON, CSV), `show` (table and summary);
`main` joins them on every rank.
"""
