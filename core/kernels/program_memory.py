"""The tuples of arrays that a recorded program runs over: what each names, device modules say."""

from collections import namedtuple

# One rank's memory, as devices/arena.py makes it: weights, tables, pages, buffers, sums.
RankMemory = namedtuple(
    "RankMemory",
    "ops weights weight_exponents constants cos sin "
    "keys key_exponents values value_exponents "
    "floats codes code_exponents queries query_exponents scratch "
    "sample_floats sample_weights sample_ids sample_bins "
    "row_sums flags turns team",
)
# What ranks share: the meeting of all threads of all ranks, and two sides of columns and of sums.
Shared = namedtuple("Shared", "group columns sums")
# A step's tables, as devices/batch.py makes them; side: 0 and 1 in turn. runs [n, 5]: lane, rows
# seen, first batch row, rows and sampled rows of each run; poisoned [n]: position << 12 | digest
# layer of its first poisoned row.
StepTables = namedtuple("StepTables", "positions lanes selected tables tiles runs poisoned side")
# How each selected row is sampled, a column each, as devices/draws.py makes it.  floats [5, rows]:
# temperature, top_p, repetition, frequency, presence.  whole [4, rows]: top_k, seed, choice, row of
# the counts.  tokens is the result.
Draws = namedtuple("Draws", "floats whole bias_starts bias_ids biases counts reply_counts tokens")
# Who runs: its place among the others, and what does not change over a device's life.
Party = namedtuple("Party", "rank world thread threads spins first_head eps scale digests")
