"""What a GLM's steps launch on a card beside the twins, each against what it means.

Run as a process, it says under numba's simulator which are equal, a line of JSON each.
"""

import json
import os
import sys
import warnings
from typing import Any

if __name__ == "__main__":
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from kvtape.core.kernels import meaning, registry
from kvtape.core.kernels.cuda import experts_plain, glm_drafts, glm_rows, linear_heads
from kvtape.core.kernels.cuda.placed import host, on_device
from kvtape.core.kernels.cuda.poisoned_runs import note_poisoned_runs
from kvtape.tests.cuda_pieces import digits, mapped, packed

Array = Any
LIMIT = np.float32(10)
BROKEN = (np.nan, np.inf, -np.inf)


def rows_of(rng: np.random.Generator, count: int, width: int) -> Array:
    """Float rows, some of them with what is no number."""
    x = (rng.standard_normal((count, width)) * rng.choice([1e-3, 1, 1e4])).astype(np.float32)
    x[rng.random(x.shape) < 0.01] = rng.choice(BROKEN)
    return x


def meant_digits(x: Array) -> tuple[Array, Array, Array]:
    """(q, e, flags) of float rows."""
    q, e, flags = meaning.q16(x)
    return q, e.astype(np.int8), flags.astype(np.uint8)


def same(*pairs: tuple[Array, Array]) -> bool:
    """Whether what is meant has the bits of what was made."""
    return all(registry.same_bits(np.asarray(a), host(b).reshape(np.shape(a))) for a, b in pairs)


def made_digits(*shape: int) -> tuple[Array, Array]:
    """Room for digits and their exponents."""
    return on_device(np.zeros(shape, np.int16)), on_device(np.zeros(shape[0], np.int8))


def by_each(rng: np.random.Generator, rows: int) -> bool:
    """Digits where a row of the step is several."""
    each, width = 3, 24
    x = rows_of(rng, rows * each, width)
    q, e = made_digits(*x.shape)
    flags = on_device(np.zeros(rows, np.uint8))
    glm_rows.q16_each(0, on_device(x), each, q, e, flags)
    meant = meant_digits(x)
    return same((meant[0], q), (meant[1], e), (meant[2].reshape(rows, each).max(1), flags))


def by_slots(rng: np.random.Generator, rows: int) -> bool:
    """Digits in the order of experts; flags are rows'."""
    chosen, width = 2, 40
    x, order = rows_of(rng, rows * chosen, width), rng.permutation(rows * chosen)
    q, e = made_digits(*x.shape)
    flags = on_device(np.zeros(rows, np.uint8))
    glm_rows.q16_slots(0, on_device(x), on_device(order), chosen, q, e, flags)
    meant, want = meant_digits(x), np.zeros(rows, np.uint8)
    np.maximum.at(want, order // chosen, meant[2])
    return same((meant[0], q), (meant[1], e), (want, flags))


def by_heads(rng: np.random.Generator, rows: int) -> bool:
    """Digits of a head's rows together."""
    heads, width = 3, 16
    x = rows_of(rng, rows, heads * width + 5)
    q, e = made_digits(heads * rows, width)
    flags = on_device(np.zeros(rows, np.uint8))
    glm_rows.q16_heads(0, on_device(x), heads, width, q, e, flags)
    each = x[:, : heads * width].reshape(rows, heads, width).swapaxes(0, 1)
    meant = meant_digits(np.ascontiguousarray(each).reshape(heads * rows, width))
    return same((meant[0], q), (meant[1], e), (meant[2].reshape(heads, rows).max(0), flags))


def added(rng: np.random.Generator, rows: int) -> bool:
    """Rows added."""
    x, y = (rng.standard_normal((rows, 70)).astype(np.float32) for _ in range(2))
    onto = on_device(x.copy())
    glm_rows.add_rows(0, onto, on_device(y))
    return same((x + y, onto))


def repeated(rng: np.random.Generator, rows: int) -> bool:
    """Rows that nobody asked for go where others go, dealt out evenly."""
    experts, have = rng.integers(0, 9, (rows, 5)), np.array([1, 1 + rows // 2, rows])
    want = experts[np.arange(rows) % have[1]]
    on_card = on_device(experts)
    glm_rows.repeat_rows(0, on_card, on_device(have), 1)
    return same((want, on_card))


def heads_mapped(rng: np.random.Generator, rows: int, inputs: int) -> bool:
    """Every head's map of its own rows."""
    heads, columns, column0 = 2, 32, 3
    stride = heads * columns + 9
    x, w = digits(rng, heads, rows, inputs), digits(rng, heads, columns, inputs)
    ex = rng.integers(-20, -12, (heads, rows), np.int8)
    ew = rng.integers(-18, -12, (heads, columns), np.int8)
    y = on_device(np.full(rows * stride, 3, np.float32))
    linear_heads.linear_heads(
        0, on_device(x.reshape(-1).view(np.int32)), on_device(ex.reshape(-1)),
        on_device(packed(w.reshape(-1, inputs))), on_device(ew.reshape(-1)), inputs // 2, rows,
        heads, columns, y, stride, column0,
    )  # fmt: skip
    want = np.full((rows, stride), 3, np.float32)
    for h in range(heads):
        first = column0 + h * columns
        want[:, first : first + columns] = mapped(x[h], ex[h], w[h], ew[h])
    return same((want, y))


def experts_mapped(rng: np.random.Generator, rows: int) -> bool:
    """Routed experts of few inputs, both maps."""
    many, chosen, inputs, inner, outputs = 4, 2, 24, 16, 32
    ids = np.array([np.sort(rng.permutation(many)[:chosen]) for _ in range(rows)], np.int64)
    order, slots = np.argsort(ids.reshape(-1), kind="stable"), rows * chosen
    x, up = digits(rng, rows, inputs), digits(rng, many, 2 * inner, inputs)
    hq, down = digits(rng, slots, inner), digits(rng, many, outputs, inner)
    ex, he = (rng.integers(-20, -12, n, np.int8) for n in (rows, slots))
    eu, ed = (rng.integers(-18, -12, one.shape[:2], np.int8) for one in (up, down))
    h, parts = (on_device(np.zeros(slots * n, np.float32)) for n in (inner, outputs + 3))
    routing = (on_device(ids), on_device(order), chosen)
    experts_plain.plain_up(
        0, on_device(x.reshape(-1).view(np.int32)), on_device(ex),
        on_device(packed(up.reshape(-1, inputs))), on_device(eu.reshape(-1)), inputs // 2,
        *routing, inner // 16, LIMIT, h, inner, 0,
    )  # fmt: skip
    experts_plain.plain_down(
        0, on_device(hq.reshape(-1).view(np.int32)), on_device(he),
        on_device(packed(down.reshape(-1, inner))), on_device(ed.reshape(-1)), inner // 2,
        *routing, outputs // 16, parts, outputs + 3, 1,
    )  # fmt: skip
    want_h = np.zeros((slots, inner), np.float32)
    want_parts = np.zeros((slots, outputs + 3), np.float32)
    for at, slot in enumerate(order):
        e, row = ids.reshape(-1)[slot], slot // chosen
        both = mapped(x[row : row + 1], ex[row : row + 1], up[e], eu[e])[0]
        gate, side = np.minimum(both[:inner], LIMIT), np.clip(both[inner:], -LIMIT, LIMIT)
        want_h[at] = meaning.silu(gate) * side
        want_parts[slot, 1 : 1 + outputs] = mapped(
            hq[at : at + 1], he[at : at + 1], down[e], ed[e]
        )[0]
    return same((want_h, h), (want_parts, parts))


# --- drafts --------------------------------------------------------------------------------------


def accepted(rng: np.random.Generator, count: int) -> bool:
    """Random windows and pieces of prompts, by the rule for one run after another."""
    rows = rng.integers(1, 6, count)
    runs, at = np.zeros((count + 1, 4), np.int64), 0  # the last place has no run
    tokens = rng.integers(0, 3, int(rows.sum()))
    t: dict[str, Array] = {
        "sampled": np.zeros((count + 1, 2), np.int64), "windows": np.zeros(count + 1, np.int64),
        "tokens": tokens, "drawn": rng.integers(0, 3, tokens.size),
        "ends": np.full((count + 1, 3), -1), "wants": np.zeros(count + 1, np.int64),
        "limits": rng.integers(1, 99, count + 1), "places": np.zeros(count + 1, np.int64),
        "next": rng.integers(0, 3, tokens.size), "kept": np.zeros(count + 1, np.int64),
    }  # fmt: skip
    for run in range(count):
        window, all_sampled = int(rng.integers(0, 2)), int(rng.integers(0, 2))
        runs[run] = count - 1 - run, at, rng.integers(0, 50), rows[run]
        sampled = rows[run] if window or all_sampled else 1
        t["sampled"][run] = at + rows[run] - sampled, sampled
        t["windows"][run] = window
        t["next"][at + rows[run] - 1] = rng.choice([-1, 1])
        t["ends"][run, 0] = rng.choice([-1, 2])
        t["wants"][run] = rng.integers(0, 3)
        at += rows[run]
    t["places"][t["wants"] > 0] = np.arange((t["wants"] > 0).sum())
    names = ("from", "runs", "positions", "lanes", "limits", "wants", "of")
    drafting: dict[str, Array] = {name: np.full(count + 1, 9) for name in names}
    drafting["runs"] = np.full((count + 1, 4), 9)
    on_card = [on_device(one.copy()) for one in (*t.values(), *drafting.values())]
    glm_drafts.accept(0, on_device(runs.copy()), *on_card)
    for run in range(count):
        keep(t, drafting, runs[run], run)
    return same(*zip((*t.values(), *drafting.values()), on_card, strict=True))


def keep(t: dict[str, Array], drafting: dict[str, Array], place: Array, run: int) -> None:
    """What is kept of one run, and its drafting row."""
    lane, at, first, rows = place.tolist()
    start, sampled = t["sampled"][run]
    ends = {int(one) for one in t["ends"][run] if one >= 0}
    kept = rows
    if t["windows"][run]:
        kept = 1
        for row in range(1, rows):
            if t["drawn"][start + row - 1] != t["tokens"][at + row]:
                break
            if int(t["tokens"][at + row]) in ends:
                break
            kept = row + 1
        t["next"][at + kept - 1 : at + rows] = t["drawn"][start + kept - 1 : start + rows]
    elif t["next"][at + rows - 1] < 0:
        t["next"][at + rows - 1] = t["drawn"][start + sampled - 1]
    t["kept"][run] = kept
    token = int(t["next"][at + kept - 1])
    if t["wants"][run] and token >= 0 and token not in ends:
        to, position = t["places"][run], first + kept - 1
        for name, value in (
            ("from", at + kept - 1), ("runs", (lane, to, position, 1)), ("positions", position),
            ("lanes", lane), ("limits", t["limits"][run]), ("wants", t["wants"][run]), ("of", run),
        ):  # fmt: skip
            drafting[name][to] = value


def drafted(rng: np.random.Generator, rows: int) -> bool:
    """Three drafts a row, while its pages hold and it wants some."""
    tokens, positions = np.zeros(rows, np.int64), rng.integers(0, 9, rows)
    runs = np.zeros((rows, 4), np.int64)
    limits, wants = positions + rng.integers(1, 4, rows), rng.integers(1, 4, rows)
    of = np.append(rng.permutation(rows - 1), rows)  # the last is nobody's
    wants[-1] = 0
    drafts, counts = np.zeros((rows + 1, 3), np.int64), np.zeros(rows + 1, np.int64)
    host_arrays = (tokens, positions, runs, limits, wants, of, drafts, counts)
    on_card = [on_device(one.copy()) for one in host_arrays]
    for which in range(3):
        logits = rng.standard_normal((rows, 40)).astype(np.float32)
        glm_drafts.draft(0, on_device(logits), which, *on_card)
        tokens[:] = logits.argmax(1)
        for row in range(rows):
            sound = which == 0 or positions[row] < limits[row]
            if sound and counts[of[row]] == which < wants[row]:
                drafts[of[row], which], counts[of[row]] = tokens[row], which + 1
        positions += 1
        runs[:, 2] += 1
    return same(*zip(host_arrays, on_card, strict=True))


def poison_found(rng: np.random.Generator, step: int) -> bool:
    """The first poisoned row that each run sees, of one cache."""
    caches, pages, per_page, wide = 2, 5, 4, 12
    rows = digits(rng, caches, pages, per_page, wide)
    tables = np.array([[0, 2], [1, 3], [4, 4]], np.int32)
    runs = np.array([[1, 0, 3, 2], [0, 2, 0, 8 * step], [2, 9, 5, 0]])
    rows[1, 3, 2, 7] = rows[1, 2, 1, 3] = rows[1, 4, 0] = rows[0, 0, 0] = -32768
    found = np.full(3, 2**62)
    on_card = on_device(found.copy())
    note_poisoned_runs(0, on_device(rows), 1, step, on_device(runs), on_device(tables), on_card)
    found[1] = ((per_page + 1) * step + step - 1) << 12 | 1
    if 5 // step > per_page + 2:
        found[0] = ((per_page + 2) * step + step - 1) << 12 | 1
    return same((found, on_card))


def pieces(rng: np.random.Generator, rows: int) -> dict[str, bool]:
    """Each of them once, of so many rows."""
    return {
        "each": by_each(rng, rows),
        "slots": by_slots(rng, rows),
        "heads": by_heads(rng, rows),
        "added": added(rng, rows),
        "repeated": repeated(rng, rows),
        "heads mapped": heads_mapped(rng, rows, 64),
        "heads mapped, plain": heads_mapped(rng, rows, 24),
        "experts mapped, plain": experts_mapped(rng, rows),
        "accepted": accepted(rng, 2 * rows),
        "drafted": drafted(rng, rows + 1),
        "poison": poison_found(rng, 1) and poison_found(rng, 4),
    }


def main() -> None:
    """A few rows, under the simulator."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    sys.stdout.write(json.dumps(pieces(np.random.default_rng(8), 3)) + "\n")


if __name__ == "__main__":
    main()
