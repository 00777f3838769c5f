"""The options of the command `plan`, those of memory as serve has them, and their meaning."""

import os
from typing import Annotated

import typer

Tp = Annotated[int, typer.Option(min=1, max=64, help="ranks")]
Parallel = Annotated[int, typer.Option(min=1, max=1024, help="streams at once")]
Context = Annotated[int, typer.Option(min=0, help="rows a stream may have; 0: automatic")]
Room = Annotated[
    str,
    typer.Option(help="a rank's, beside weights and reserve: 15.25GiB; else as much as is wanted"),
]
KvPages = Annotated[
    str, typer.Option(help="on: streams share one pool; off: each its window; auto; TF_KV_PAGES")
]
KvCache = Annotated[str, typer.Option(help="bits of a row: 16; fp8 can be planned only")]
Store = Annotated[
    str, typer.Option(help="radix: prompts kept on the pool's pages; flat: as copies; else as fits")
]
PromptCacheGib = Annotated[
    str, typer.Option(help="for kept prompts beside the pages; 16 by default")
]
Share = Annotated[
    str, typer.Option(help="prompts kept at most, 0: as by default; else TF_GLM_KV_SHARE")
]
PlanOrder = Annotated[
    str,
    typer.Option(
        "--plan-order", "--order",
        help="proposed: whole windows first; today: the prompt cache first",
    ),
]  # fmt: skip
MtpDrafts = Annotated[
    int, typer.Option(min=-1, max=4, help="tokens drafted a round; -1: as the model has it")
]
Memory = Annotated[str, typer.Option(help="of a device, weights still to come: 141GB")]
Reserve = Annotated[str, typer.Option(help="of --memory; by default 1/32, at least 1GiB")]
SpareTo = Annotated[
    str, typer.Option(help="with --share: free leaves the prompt cache's bytes free, or pages")
]
Fixed = Annotated[
    str, typer.Option(help="what a stream keeps beside its rows: 180MiB; by default our own")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="exact checksums of all linear maps, each step; GPUs alone")
]
WhatFits = Annotated[
    bool, typer.Option("--what-fits", help="the largest values and the flags that would do")
]
Shape = Annotated[
    str, typer.Argument(help="as serve takes it, a directory's config.json, or glm-5.3-flash")
]


def plan(
    model: Shape,
    room: Room = "",
    memory: Memory = "",
    reserve: Reserve = "",
    tp: Tp = 1,
    context: Context = 0,
    parallel: Parallel = 8,
    kv_pages: KvPages = "",
    kv_cache: KvCache = "16",
    store: Store = "",
    prompt_cache_gib: PromptCacheGib = "",
    share: Share = "",
    spare_to: SpareTo = "free",
    fixed: Fixed = "",
    mtp_drafts: MtpDrafts = -1,
    plan_order: PlanOrder = "proposed",
    verify: Verify = False,
    what_fits: WhatFits = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show who would get how much memory at start, without loading a weight.

    With neither --room nor --memory: what serve would plan on this machine.
    """
    from .plan_asked import PlanOptions
    from .plan_command import run_plan

    options = PlanOptions(
        model=model,
        room=room,
        memory=memory,
        reserve=reserve,
        world=tp,
        context=context,
        lanes=parallel,
        kv_pages=kv_pages,
        kv_cache=kv_cache,
        store=store,
        prompt_cache_gib=prompt_cache_gib,
        share=share,
        fixed=fixed,
        drafts=None if mtp_drafts < 0 else mtp_drafts,
        order=plan_order,
        spare_to=spare_to,
        verify=verify,
        what_fits=what_fits,
        as_json=as_json,
    )
    raise typer.Exit(run_plan(options, os.environ))
