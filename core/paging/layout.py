"""Where the prompt tree's integers stand: a head, then records, each named by where it begins.

A record's name is 0 where there is none. Records: a node for each page of the pool and for each
salt, a state, a part of a prompt that has its time, a prefix that went, a use of a node.
"""

# --- the head: words of its own -------------------------------------------------------------------

CLOCK = 1  # of what was kept or came back
CAME = 2  # pages to the pool
MOST = 3  # pages that come while a part has its time, and prefixes that are remembered
ROWS, AHEAD = 4, 5  # of a page, and tokens after it on which it depends
NODES = 6  # the nodes of pages, page by page
NODE_BUCKETS, NODE_MASK = 7, 8  # chains of nodes by name
GONE_TABLE, GONE_MASK = 9, 10  # of prefixes that went (gone.py)
GONE_FREE, GONE_COUNT, GONE_FIRST, GONE_LAST = 11, 12, 13, 14  # the oldest first
PARTS, PARTS_MASK = 15, 16  # a ring
PART_FIRST, PART_NEXT = 17, 18  # numbers of parts: the oldest that has its time, the next
USES_FREE, USES_LEFT = 19, 20
WALKED = 21  # the node that a walk came to
POLICY = 22
GONE, GONE_MADE = 23, 24  # their records, from the first on, and how many were ever used
# Of the last stage: pages found, pages swapped, states that it made, pages of their first.
REPEATED, SWAPPED, MADE, UPTO = 25, 26, 27, 28
QUEUES = 32  # of each level: the oldest state and the newest

# --- records --------------------------------------------------------------------------------------

# A node: the page below `PARENT`, its kids oldest first (a ring by PREV), and the newest state that
# ends there.  USED: the clock.  USES, TURN, PART, LEVEL: how often it came back, in which turn of
# its conversation, of which part of that prompt it is (-1: none), and that part's odds.
# USER: the first use of it.
PARENT, KID, NEXT, PREV, DEPTH, USED, USES, TURN = range(8)
PART, LEVEL, STATE, NAME, SECOND, CHAIN, USER, PAGE = range(8, 16)
NODE = 16  # words

# A state: the node where it ends, the next one that ends there, and its place in a queue: the level
# and 1 (0: none), when it was last used.  STAYS: how many are resuming it.
STATE_ID, END, BESIDE, BEFORE, AFTER, QUEUED, SINCE, STAYS = range(8)
RECORD = 8  # words of all others; both are lines of a cache, where they stand on one

# A part: when it came and how many pages had come by then, its three weights, its odds, and whether
# it came back.
BORN, AT, BY_TURN, BY_ADDED, BY_USES, ODDS, RETURNED = range(7)

# A prefix that went: its name, how often it had come back, in which turn and with which part.
GONE_NAME, GONE_SECOND, GONE_USES, GONE_TURN, GONE_PART, GONE_BEFORE, GONE_AFTER = range(7)

# A stream's use of a node, the stream's next, and the others of the node; where the node went (0),
# the part that it was of.
USE_NODE, USE_PART, USE_NEXT, USE_BEFORE, USE_AFTER = range(5)

SEEDS, LRU, ODDS_POLICY = 0, 1, 3  # flag `evict` of a run; 2 was an order that is no more

# What a function answers that could not do what was asked, and did nothing.
GROW = -1  # there are too few records of parts or of uses
ELSEWHERE = -2  # the tree has other pages for these tokens
AMISS = -3  # book and tree disagree
