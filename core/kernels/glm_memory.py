"""The tuples of arrays that a GLM's recorded program runs over: what each names, devices/glm says.

A row set has tables of its own: ALL the rows of a step, the SELECTED ones that get logits, and one
row for each stream that is DRAFTED for.
"""

from collections import namedtuple

# One rank's memory.  latent, keys, index_ring by cache; conv_ring, states by recurrent layer.
# experts, order, starts, shares: the routing of the rows at hand; picked, counts: their pools.
GlmMemory = namedtuple(
    "GlmMemory",
    "ops weights weight_exponents constants table_high table_low "
    "latent keys index_ring conv_ring states "
    "floats codes code_exponents experts order starts shares picked counts "
    "scores attending work expert_codes expert_exponents expert_floats "
    "sample_floats sample_weights sample_ids sample_bins "
    "row_sums key_sums draft_sums spare_sums flags spare_flags turns team "
    "drafts draft_counts drafting draft_from draft_runs draft_tokens draft_positions draft_lanes "
    "draft_limits draft_wants",
)
# Their rows in the table of places (places.py).
(
    OPS, WEIGHTS, WEIGHT_EXPONENTS, CONSTANTS, TABLE_HIGH, TABLE_LOW, LATENT, KEYS, INDEX_RING,
    CONV_RING, STATES, FLOATS, CODES, CODE_EXPONENTS, EXPERTS, ORDER, STARTS, SHARES, PICKED,
    COUNTS, SCORES, ATTENDING, WORK, EXPERT_CODES, EXPERT_EXPONENTS, EXPERT_FLOATS, SAMPLE_FLOATS,
    SAMPLE_WEIGHTS, SAMPLE_IDS, SAMPLE_BINS, ROW_SUMS, KEY_SUMS, DRAFT_SUMS, SPARE_SUMS, FLAGS,
    SPARE_FLAGS, TURNS, TEAM, DRAFTS, DRAFT_COUNTS, DRAFTING, DRAFT_FROM, DRAFT_RUNS,
    DRAFT_TOKENS, DRAFT_POSITIONS, DRAFT_LANES, DRAFT_LIMITS, DRAFT_WANTS,
) = range(len(GlmMemory._fields))  # fmt: skip
# A step's tables.  runs [n, 4]: lane, first batch row, first position, rows.  next_tokens [rows]:
# the token after each row, -1 where it is drawn in this step.  sampled [n, 2]: the first of a run's
# selected rows and how many; windows [n]: 1 for a round's window; kept [n]: rows kept, a result;
# ends [n, .]: ids that end the reply, -1 past them; wants [n]: drafts wanted after the run;
# limits [n]: rows that the stream's pages hold.  side: 0 and 1 in turn.
GlmStep = namedtuple(
    "GlmStep",
    "tokens positions lanes selected tables runs next_tokens sampled windows kept ends wants "
    "limits poisoned side",
)
# Who runs, and what does not change over a device's life.
GlmParty = namedtuple(
    "GlmParty",
    "rank world thread threads spins digests drafting eps index_eps hc_eps hc_rounds "
    "streams hidden heads latent latent_exponent attend_scale index_heads index_dim index_scale "
    "kpool most page_rows kda_heads kda_dim bound expert_count chosen routed_scale limit "
    "trunk_caches",
)
