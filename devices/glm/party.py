"""Who runs a GLM's program: its place among the threads and ranks, and the model's sizes."""

import numpy as np

from ...core.families.glm import Glm
from ...core.kernels.glm_memory import GlmParty
from ..settings import DeviceSettings

INDEX_EPS = 1e-6  # of the index keys' LayerNorm, whatever the config's other epsilons are


def party_of(
    family: Glm,
    settings: DeviceSettings,
    rank: int,
    world: int,
    thread: int,
    threads: int,
    spins: int,
    latent_exponent: int,
) -> GlmParty:
    """One thread of one rank."""
    s = family.sizes
    first, last = family.heads(world, rank)
    first_kda, last_kda = family.kda_heads(world, rank)
    one = np.float32(1)
    return GlmParty(
        rank=rank,
        world=world,
        thread=thread,
        threads=threads,
        spins=spins,
        digests=settings.keeps_rows,
        drafting=family.choices.drafts > 0,
        eps=np.float32(s.eps),
        index_eps=np.float32(INDEX_EPS),
        hc_eps=np.float32(s.hc_eps),
        hc_rounds=s.hc_iters,
        streams=s.hc,
        hidden=s.hidden,
        heads=last - first,
        latent=s.latent,
        latent_exponent=latent_exponent,
        attend_scale=one / np.sqrt(np.float32(s.nope)),
        index_heads=s.index_heads,
        index_dim=s.index_dim,
        index_scale=np.float32(1.0 / np.sqrt(float(s.index_heads * s.index_dim))),
        kpool=s.kpool,
        most=s.index_topk // s.kpool,
        page_rows=family.choices.page_rows,
        kda_heads=last_kda - first_kda,
        kda_dim=s.kda_dim,
        bound=np.float32(s.bound),
        expert_count=s.experts,
        chosen=s.experts_per_token,
        routed_scale=np.float32(s.routed_scale),
        limit=np.float32(s.limit),
        trunk_caches=len(family.sparse),
    )
