"""The demo's last chapter: a model with recurrent states, selected rows, experts and drafts."""

from typing import Any

from .demo_stage import DemoFailed, Story, ask, client, equal, said, server, tool

MODEL = "glm-tales"
FIRST = "Tell me a story about a small boat."
SECOND = "Tell me what the boat did next."


def tell_glm(story: Story) -> None:
    """Serve the tiny GLM on two ranks with drafts; replay at one and three; diff the ranks."""
    story.chapter("5. A model of the GLM family, with drafts")
    tape = story.folder / "glm.tape"
    story.say("starting; this family's program is compiled once too, two minutes or more ...")
    with server(story, MODEL, tape, "--mtp-drafts", "2") as (_, port):
        asking = client(port)
        text, usage, _ = ask(asking, MODEL, "boat", [{"role": "user", "content": FIRST}], 96)
        said(story, FIRST, text)
        _say_drafts(story, usage)
        more = [{"role": "user", "content": FIRST}, {"role": "assistant", "content": text}]
        text, usage, _ = ask(
            asking, MODEL, "boat", [*more, {"role": "user", "content": SECOND}], 48
        )
        said(story, SECOND, text)
    for ranks, words in ((1, "one rank"), (3, "three ranks")):
        found = tool(story, "replay", str(tape), "--tp", str(ranks))
        equal(story, found, f"the whole run on {words}")
    equal(story, tool(story, "replay", str(tape), "--fast-forward"), "replies run as prompts")
    found = tool(story, "diff", f"{tape}#0", f"{tape}#1", "--no-deep")
    if found["verdict"] != "equal":
        raise DemoFailed(f"rank 0 against rank 1: {found}")
    story.say("rank 0 against rank 1: [green]equal[/green]")


def _say_drafts(story: Story, usage: Any) -> None:
    """How many drafted tokens the reply kept."""
    told = usage.completion_tokens_details
    kept, refused = told.accepted_prediction_tokens, told.rejected_prediction_tokens
    if not kept:
        raise DemoFailed(f"no draft was kept: {told}")
    story.say(
        f"{kept} of {kept + refused} drafted tokens were kept: the same reply in fewer rounds"
    )
