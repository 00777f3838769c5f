"""A GLM's layers written with torch in bfloat16, as a peer: what its users would put into a graph.

Projections that share their input are one matrix; experts are grouped products over the slots in
the order of their experts; what stands between is compiled by torch where it can be. The prompt's
recurrence is in chunks, its attention dense, since no row has more to see than it may choose.
"""

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from kvtape.core.families.glm_config import DENSE, KDA, GlmSizes

from .cuda_peer_parts import Parts

Tensor = Any
CHUNK, BLOCK = 64, 16  # rows of a prompt's chunk, and of its blocks whose decays cannot overflow


class PeerModel:
    """Random weights, and caches for `lanes` streams that stand at row `position`.

    grouped: experts by grouped products; otherwise the chosen experts' weights are picked out.
    """

    def __init__(
        self, sizes: GlmSizes, lanes: int, position: int, parts: Parts, device: str = "cuda"
    ) -> None:
        self.s, self.parts, self.device, self.grouped = sizes, parts, device, True
        self.chosen: list[Tensor] | None = None  # the experts of each layer, while they are noted
        self.layers = [self._layer(layer) for layer in range(sizes.layers)]
        self.table = self._random(sizes.vocab, sizes.hidden)
        self.lm_head = self._random(sizes.vocab, sizes.hidden)
        self.norm = self._random(sizes.hidden, scale=1)
        self.caches: list[dict[str, Tensor]] = []
        self.seat(lanes, position)

    def _random(self, *shape: int, scale: float = 0.02) -> Tensor:
        made = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return made.normal_(0, scale)

    def seat(self, lanes: int, position: int) -> None:
        """Caches of so many streams whose next row is `position`; it completes a pool."""
        s, kind = self.s, torch.bfloat16
        self.lanes, self.position, pools = lanes, position, (position + 1) // s.kpool
        self.caches = []
        for layer in range(s.layers):
            if s.layer_kinds[layer] == KDA:
                wide = s.kda_heads * s.kda_dim
                states = torch.zeros(
                    lanes, s.kda_heads, s.kda_dim, s.kda_dim, dtype=torch.float32,
                    device=self.device,
                )  # fmt: skip
                ring = self._random(lanes, s.taps - 1, 3 * wide, scale=1)
                self.caches.append({"states": states, "ring": ring})
                continue
            self.caches.append({
                "latent": self._random(lanes, position + 1, s.latent, scale=1),
                "keys": self._random(lanes, max(pools, 1), s.index_dim, scale=1),
                "ring": torch.zeros(
                    lanes, s.kpool, 2, s.index_dim, dtype=kind, device=self.device
                ),
            })  # fmt: skip

    def _layer(self, layer: int) -> dict[str, Tensor]:
        s = self.s
        made: dict[str, Tensor] = {}
        for site in ("attn", "ffn"):
            made[f"{site} fn"] = self._random(s.site, s.hc * s.hidden).float()
            made[f"{site} base"] = self._random(s.site).float()
            made[f"{site} scale"] = torch.ones(3, device=self.device)
            made[f"{site} norm"] = self._random(s.hidden, scale=1)
        kinds = self._recurrent if s.layer_kinds[layer] == KDA else self._sparse
        made |= kinds()
        if s.mlp_kinds[layer] == DENSE:
            made["up"] = self._random(2 * s.inner, s.hidden)
            made["down"] = self._random(s.hidden, s.inner)
            return made
        made["router"] = self._random(s.experts, s.hidden)
        made["bias"] = torch.zeros(s.experts, device=self.device)
        made["expert up"] = self._random(s.experts, 2 * s.expert_inner, s.hidden)
        made["expert down"] = self._random(s.experts, s.hidden, s.expert_inner)
        made["up"] = self._random(2 * s.shared_inner, s.hidden)
        made["down"] = self._random(s.hidden, s.shared_inner)
        return made

    def _recurrent(self) -> dict[str, Tensor]:
        s, wide = self.s, self.s.kda_heads * self.s.kda_dim
        return {
            "in": self._random(3 * wide + 2 * s.kda_dim + s.kda_heads, s.hidden),
            "steps": self._random(wide, s.kda_dim),
            "gate": self._random(wide, s.kda_dim),
            "taps": self._random(3 * wide, s.taps, scale=0.5).float(),
            "dt": torch.zeros(wide, device=self.device),
            "decay": torch.ones(s.kda_heads, 1, device=self.device),
            "o_norm": torch.ones(s.kda_dim, device=self.device),
            "out": self._random(s.hidden, wide),
        }

    def _sparse(self) -> dict[str, Tensor]:
        s = self.s
        return {
            "in": self._random(s.q_rank + s.latent + 2 * s.index_dim + s.index_heads, s.hidden),
            "q_norm": self._random(s.q_rank, scale=1),
            "latent_norm": self._random(s.latent, scale=1),
            "key_norm": torch.ones(s.index_dim, dtype=torch.bfloat16, device=self.device),
            "key_bias": torch.zeros(s.index_dim, dtype=torch.bfloat16, device=self.device),
            "slots": self._random(s.kpool, s.index_dim),
            "q": self._random(s.heads * s.nope + s.index_heads * s.index_dim, s.q_rank),
            "keys": self._random(s.heads, s.nope, s.latent, scale=0.05),
            "values": self._random(s.heads, s.latent, s.value_dim, scale=0.05),
            "out": self._random(s.hidden, s.heads * s.value_dim),
        }

    # --- the forward pass ------------------------------------------------------------------------

    def run(self, x: Tensor, *, prompt: bool) -> Tensor:
        """All layers over streams x [rows, hc, hidden]: a row a lane, or one lane's prompt."""
        s, parts = self.s, self.parts
        for layer, (w, cache) in enumerate(zip(self.layers, self.caches, strict=True)):
            u, post, comb = self._read(x, w, "attn")
            if s.layer_kinds[layer] == KDA:
                y = self._recur(u, w, cache, prompt=prompt)
            elif prompt:
                y = self._attend_all(u, w, cache)
            else:
                y = self._attend_chosen(u, w, cache)
            x = parts.written(x, F.linear(y, w["out"]), post, comb)
            u, post, comb = self._read(x, w, "ffn")
            y = F.linear(parts.unit(F.linear(u, w["up"]), s.limit), w["down"])
            if "router" in w:
                y = y + self._routed(u, w)
            x = parts.written(x, y, post, comb)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the mean of the streams."""
        h = F.rms_norm(x.float().mean(1).to(x.dtype), (self.s.hidden,), self.norm, self.s.eps)
        return F.linear(h, self.lm_head)

    def _read(self, x: Tensor, w: dict[str, Tensor], site: str) -> tuple[Tensor, Tensor, Tensor]:
        s = self.s
        z = F.rms_norm(x.float().flatten(1), (s.hc * s.hidden,), None, s.eps)
        m = F.linear(z, w[site + " fn"])
        pre, post, comb = self.parts.site(m, w[site + " base"], w[site + " scale"], s)
        u = torch.bmm(pre.to(x.dtype).unsqueeze(1), x).squeeze(1)
        return F.rms_norm(u, (s.hidden,), w[site + " norm"], s.eps), post, comb

    def _routed(self, u: Tensor, w: dict[str, Tensor]) -> Tensor:
        s, k = self.s, self.s.experts_per_token
        ids, weights = self.parts.routed(F.linear(u, w["router"]), w["bias"], k, s.routed_scale)
        if self.chosen is not None:
            self.chosen.append(ids)
        if not self.grouped:
            up, down = (w[name].index_select(0, ids.flatten()) for name in PICKED)
            slots = u.repeat_interleave(k, 0).unsqueeze(2)
            h = self.parts.unit(torch.bmm(up, slots).squeeze(2), s.limit)
            out = torch.bmm(down, h.unsqueeze(2)).squeeze(2).view(-1, k, s.hidden)
            return torch.bmm(weights.to(u.dtype).unsqueeze(1), out).squeeze(1)
        sorted_ids, order = ids.flatten().sort(stable=True)
        every = torch.arange(s.experts, device=u.device)
        ends = torch.searchsorted(sorted_ids, every, right=True).to(torch.int32)
        slots = u.index_select(0, order // k)
        h = torch._grouped_mm(slots, w["expert up"].transpose(1, 2), offs=ends)
        out = torch._grouped_mm(
            self.parts.unit(h, s.limit), w["expert down"].transpose(1, 2), offs=ends
        )
        weighed = out * weights.flatten()[order].to(u.dtype).unsqueeze(1)
        back = torch.empty_like(order).scatter_(0, order, self._every(order))
        return weighed.index_select(0, back).view(-1, k, s.hidden).sum(1)

    def _every(self, like: Tensor) -> Tensor:
        return torch.arange(like.shape[0], device=like.device)

    # --- recurrent layers ------------------------------------------------------------------------

    def _recur(
        self, u: Tensor, w: dict[str, Tensor], cache: dict[str, Tensor], *, prompt: bool
    ) -> Tensor:
        s, rows = self.s, u.shape[0]
        heads, dim = s.kda_heads, s.kda_dim
        mixed, low, gate_low, beta = F.linear(u, w["in"]).split(
            [3 * heads * dim, dim, dim, heads], 1
        )
        steps, gate = F.linear(low, w["steps"]), F.linear(gate_low, w["gate"])
        if prompt:
            before = torch.cat([torch.zeros_like(cache["ring"][0]), mixed])
            y = self.parts.convolved_all(before, w["taps"])
            cache["ring"][0].copy_(mixed[-(s.taps - 1) :])
        else:
            y, ring = self.parts.convolved(cache["ring"], mixed, w["taps"])
            cache["ring"].copy_(ring)
        q, k, v, g, strength = self.parts.prepared(
            y, steps, beta, w["dt"], w["decay"], s.bound, heads, dim
        )
        if prompt:
            o, state = chunked(q, k, v, g, strength)
            cache["states"][0].copy_(state)
        else:
            o, states = self.parts.recurred(cache["states"], q, k, v, g, strength)
            cache["states"].copy_(states)
        return self.parts.gated(o, gate.view(rows, heads, dim), w["o_norm"], s.eps).flatten(1)

    # --- layers of latent rows -------------------------------------------------------------------

    def _projected(self, u: Tensor, w: dict[str, Tensor]) -> tuple[Tensor, ...]:
        s = self.s
        low, c, key, gate, weights = F.linear(u, w["in"]).split(
            [s.q_rank, s.latent, s.index_dim, s.index_dim, s.index_heads], 1
        )
        qr = F.rms_norm(low, (s.q_rank,), w["q_norm"], s.eps)
        c = F.rms_norm(c, (s.latent,), w["latent_norm"], s.eps)
        key = F.layer_norm(key, (s.index_dim,), w["key_norm"], w["key_bias"], 1e-6)
        q, asks = F.linear(qr, w["q"]).split(
            [s.heads * s.nope, s.index_heads * s.index_dim], 1
        )  # fmt: skip
        return c, key, gate, weights, q.view(-1, s.heads, s.nope), asks

    def _attend_chosen(self, u: Tensor, w: dict[str, Tensor], cache: dict[str, Tensor]) -> Tensor:
        """A row a lane, over the pools that its indexer picks and the rows of no whole pool."""
        s, lanes, at = self.s, self.lanes, self.position
        c, key, gate, weights, q, asks = self._projected(u, w)
        cache["latent"][:, at] = c
        cache["ring"][:, at % s.kpool] = torch.stack([key, gate], 1)
        keys, pool = cache["keys"], at // s.kpool
        if pool < keys.shape[1]:
            keys[:, pool] = self.parts.pooled(cache["ring"], w["slots"])
        scores = self.parts.scored(
            torch.bmm(asks.view(lanes, s.index_heads, s.index_dim), keys.transpose(1, 2)), weights,
            (s.index_heads * s.index_dim) ** -0.5,
        )  # fmt: skip
        picked = scores.topk(min(s.pools, keys.shape[1]), 1).indices
        inside = torch.arange(s.kpool, device=u.device)
        rows = (picked.unsqueeze(2) * s.kpool + inside).flatten(1)
        tail = torch.arange((at + 1) // s.kpool * s.kpool, at + 1, device=u.device)
        rows = torch.cat([rows, tail.expand(lanes, -1)], 1)
        first = torch.arange(lanes, device=u.device).unsqueeze(1) * (at + 1)
        seen = cache["latent"].view(-1, s.latent).index_select(0, (rows + first).flatten())
        seen = seen.view(lanes, -1, s.latent)
        absorbed = torch.bmm(q.transpose(0, 1), w["keys"]).transpose(0, 1)
        shares = torch.bmm(absorbed, seen.transpose(1, 2)) * s.nope**-0.5
        read = torch.bmm(shares.float().softmax(2).to(u.dtype), seen)
        out: Tensor = torch.bmm(read.transpose(0, 1), w["values"]).transpose(0, 1)
        return out.flatten(1)

    def _attend_all(self, u: Tensor, w: dict[str, Tensor], cache: dict[str, Tensor]) -> Tensor:
        """A prompt's rows from the first on, each over all before it."""
        s, rows = self.s, u.shape[0]
        assert rows <= s.index_topk, rows
        c, key, gate, _, q, _ = self._projected(u, w)
        cache["latent"][0, :rows] = c
        pools = rows // s.kpool
        raw = torch.stack([key, gate], 1)[: pools * s.kpool]
        cache["keys"][0, :pools] = self.parts.pooled(
            raw.view(pools, s.kpool, 2, s.index_dim), w["slots"]
        )
        every = c.expand(s.heads, -1, -1)
        keys, values = torch.bmm(every, w["keys"].transpose(1, 2)), torch.bmm(every, w["values"])
        out: Tensor = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0),
            is_causal=True, scale=s.nope**-0.5,
        )  # fmt: skip
        return out.squeeze(0).transpose(0, 1).flatten(1)


PICKED = ("expert up", "expert down")


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """(o [rows, heads, dim], state [heads, dim, dim]) of the recurrence from an empty state.

    q, k, v [rows, heads, dim]; g the decays' logarithms; strength [rows, heads]; all float32. In a
    chunk the rows' corrections solve a triangular system, whose inverse is a product of powers.
    """
    rows, heads, dim = q.shape
    n = -(-rows // CHUNK)

    def cut(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, 0, 0, n * CHUNK - rows))
        return padded.view(n, CHUNK, heads, -1).transpose(1, 2)  # [n, heads, CHUNK, .]

    q, k, v, g, b = cut(q), cut(k), cut(v), cut(g).cumsum(2), cut(strength.unsqueeze(2))
    among, asked = q.new_zeros(n, heads, CHUNK, CHUNK), q.new_zeros(n, heads, CHUNK, CHUNK)
    for low in range(0, CHUNK, BLOCK):
        high = low + BLOCK
        to, start, middle = g[:, :, low:high], g[:, :, low : low + 1], g[:, :, low + 7 : low + 8]
        for first, last, base in ((0, low, start), (low, high, middle)):
            if first == last:
                continue
            other = (k[:, :, first:last] * (base - g[:, :, first:last]).exp()).transpose(2, 3)
            decayed = (to - base).exp()
            among[:, :, low:high, first:last] = (k[:, :, low:high] * decayed) @ other
            asked[:, :, low:high, first:last] = (q[:, :, low:high] * decayed) @ other
    power = -(among * b).tril(-1)
    inverse = torch.eye(CHUNK, device=q.device) + power
    for _ in range(5):
        power = power @ power
        inverse = inverse + inverse @ power
    wanted, known = inverse @ (v * b), inverse @ (k * b * g.exp())
    asked, reading = asked.tril(), q * g.exp()
    keeping = (k * (g[:, :, -1:] - g).exp()).transpose(2, 3)
    fading = g[:, :, -1].exp().unsqueeze(3)
    state, out = q.new_zeros(heads, dim, dim), []
    for i in range(n):
        new = wanted[i] - known[i] @ state
        out.append(reading[i] @ state + asked[i] @ new)
        state = torch.baddbmm(fading[i] * state, keeping[i], new)
    o = torch.stack(out).transpose(1, 2).reshape(n * CHUNK, heads, dim)
    return o[:rows], state
