"""Models as runs need them: devices with their weights, for a run that opens or one on a tape."""

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.apply import apply
from ..core.decide import decide
from ..core.device import Device
from ..core.families.family import Choices, UnsupportedShape
from ..core.families.glm import GRID_ROWS
from ..core.state import open_state
from ..devices.chat import read_chat
from ..devices.fake import fake_group
from ..devices.group import MAKERS, choices_of, device_here, family_of
from ..devices.http.engine import TextSide
from ..devices.http.model_text import ModelText
from ..devices.kernel_cache import told_of_compiles, use_cache, warm
from ..devices.text import read_codec
from ..devices.weights.checkpoint import Checkpoint, ModelNotFound
from ..devices.weights.find import find_model, find_path
from ..events.commands import Arrive
from ..events.facts import AnyFact, RunOpened
from ..events.ids import RequestId, SessionId, Token
from .fakes import FAKES
from .machine import MakeDevices
from .opening import BadOption, RunOptions, run_opened, settings_of
from .plan_made import Planned, planned
from .progress import NowAndThen
from .show import ERRORS
from .verdict import Refused

NO_MODEL = "0" * 32

Say = Callable[[str], None]
Count = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run that can open. text: None for a model that takes token ids alone; ends: of a reply.

    notes: what its plan does not keep of what was wanted.
    """

    opened: RunOpened
    devices: Sequence[Device]
    text: TextSide | None
    ends: tuple[int, ...]
    weights: str
    notes: tuple[str, ...] = ()


def load(name: str, options: RunOptions, say: Say, count: Count) -> Loaded:
    """Plan, compile what is not compiled yet, and load a model by name or path.

    Raises BadOption, ModelError, UnsupportedShape; where a plan is refused, no weight was read.
    """
    if why := _no_way(options.device, options.gather, verify=options.verify):
        raise BadOption(why)
    if name in FAKES:  # before the plan, which asks a GPU for its memory
        _refuse_fake_cards(name, options.device)
    else:
        find_path(name)  # a plan knows names of models that nobody can serve
    plan = planned(name, options)
    if name in FAKES:
        warm(use_cache(), say)
        return _load_fake(name, options, plan)
    checkpoint = find_model(name)
    if options.device == "cpu":
        warm(use_cache(), say)
        say("the program of a step, compiled once")
    else:
        use_cache()
        say("the kernels of a step, compiled for this GPU")
    choices = Choices(mark_rows=GRID_ROWS if options.marks == "grid" else 0, drafts=options.drafts)
    family = family_of(checkpoint, choices)
    page_bytes = sum(family.page_bytes(options.world, rank) for rank in range(options.world))
    opened = run_opened(
        options, family.rules(), plan.division(page_bytes), model=checkpoint.name,
        model_digest=NO_MODEL, family=checkpoint.family, device=options.device,
    )  # fmt: skip
    with told_of_compiles(say):
        devices = MAKERS[options.device](
            checkpoint, replace(settings_of(opened), verify=options.verify),
            world=options.world, threads=options.threads, progress=count, choices=choices,
            **_ways(options.device, options.gather),
        )  # fmt: skip
    opened = opened.model_copy(update={"model_digest": devices[0].model_digest})
    text, ends = _text_of(checkpoint)
    gc.freeze()  # compilers and tokenizers leave much behind that no collection need walk again
    notes = (*plan.notes, *_gathers(devices[0]))
    return Loaded(opened, devices, text, ends, str(checkpoint.path), notes)


def _ways(device: str, gather: str) -> dict[str, str]:
    """What the makers of GPUs' ranks are told beside what all are told."""
    return {"gather": gather} if device == "cuda" else {}


def _no_way(device: str, gather: str, *, verify: bool) -> str:
    """Why ranks cannot be told how to gather, or to verify; "" where they can, or nobody did."""
    if device == "cuda":
        return ""
    if gather != "auto":
        return f"--gather {gather} is for --device cuda: ranks on CPUs share one memory"
    if verify:
        return (
            "--verify is for --device cuda, whose kernels look at their products as they run; what"
            " a CPU computed is verified by a replay on another machine"
        )
    return ""


def _gathers(device: Any) -> tuple[str, ...]:
    """How ranks on GPUs hand each other columns, to be said; it is on no tape: bits are equal."""
    said = device.gather.said if hasattr(device, "gather") else ""
    return (said,) if said else ()


def _refuse_fake_cards(name: str, device: str) -> None:
    if device != "cpu":
        raise BadOption(f"--device {device}: {name} has no weights, and runs on the CPU alone")


def _load_fake(name: str, options: RunOptions, plan: Planned) -> Loaded:
    division = plan.division(options.world * plan.asked.wanted.sizes.page_bytes)
    opened = run_opened(
        options, FAKES[name](), division, model=name, model_digest=NO_MODEL, family="fake",
        device="fake",
    )  # fmt: skip
    _compile_fake(opened)
    return Loaded(opened, fake_group(opened, options.world), None, (), "", plan.notes)


def _compile_fake(opened: RunOpened) -> None:
    """Run one row on a device of its own, so that no request waits for the compiler."""
    alone = opened.model_copy(update={"world": 1, "lanes": 1, "devices": ("fake",)})
    state, facts = open_state(alone), list[AnyFact]()
    wish = Arrive(request=RequestId("row"), session=SessionId("row"), prompt=(Token(0),), max_new=1)
    for fact in decide(state, (wish,)):
        apply(state, fact)
        facts.append(fact)
    fake_group(alone, 1)[0].launch(state, facts).report()


def _text_of(checkpoint: Checkpoint) -> tuple[TextSide | None, tuple[int, ...]]:
    """The model's tokenizer and chat template, and the tokens that end a reply."""
    ends = tuple(checkpoint.config["eos_token_ids"])
    try:
        codec = read_codec(checkpoint.path)
    except ModelNotFound:
        return None, ends  # no tokenizer beside the weights: token ids are served
    chat = read_chat(checkpoint.path, codec, ends)
    return ModelText(codec, chat), chat.ends if chat is not None else ends


def devices_for(
    threads: int, device: str = "", gather: str = "auto", *, verify: bool = False
) -> Callable[[str], MakeDevices]:
    """Where weights are named to what makes devices for a run on a tape.

    device: what was asked for; where nothing was, a run of GPUs goes to a CPU if there are none.
    Making them raises ModelError where the weights are not found, Refused where they are others.
    """
    return lambda model: (
        lambda opened: _devices_of(opened, model, threads, device, gather, verify=verify)
    )


def _said(line: str) -> None:
    ERRORS.print(line, markup=False, soft_wrap=True)


def _refuse_by(why: str) -> None:
    if why:
        raise Refused(why)


def _devices_of(
    opened: RunOpened, model: str, threads: int, asked: str, gather: str, *, verify: bool
) -> Sequence[Device]:
    if opened.family == "fake":
        _refuse_by(_no_way("fake", gather, verify=verify))
        _refuse_by(f"--device {asked}: {opened.model} has no weights" if asked == "cuda" else "")
        _refuse_by(f"--model {model}: {opened.model} has no weights" if model else "")
        warm(use_cache(), NowAndThen(_said))
        return fake_group(opened, opened.world)
    _refuse_by(f"--device fake: {opened.model} has weights" if asked == "fake" else "")
    checkpoint = find_model(model or opened.model)
    kind = asked or device_here(opened.devices[0])
    _refuse_by(_no_way(kind, gather, verify=verify))
    _refuse_other(checkpoint, opened)
    if kind == "cpu":
        warm(use_cache(), NowAndThen(_said))
    else:
        use_cache()
    devices = MAKERS[kind](
        checkpoint, replace(settings_of(opened), verify=verify), world=opened.world,
        threads=threads or max(1, (os.cpu_count() or 1) // opened.world),
        choices=choices_of(opened.rules), **_ways(kind, gather),
    )  # fmt: skip
    if devices[0].model_digest == opened.model_digest:
        gc.freeze()  # as in load
        return devices
    for device in devices:
        device.close()
    raise _another(
        checkpoint,
        f"its digest is {devices[0].model_digest}, the tape was made on {opened.model_digest}",
    )


def _another(checkpoint: Checkpoint, how: str) -> Refused:
    return Refused(
        f"{checkpoint.path} is another model: {how}; name the right one with --model PATH"
    )


def _refuse_other(checkpoint: Checkpoint, opened: RunOpened) -> None:
    """Refuse weights that can be told from the tape's before they are read.

    What the run chose, its own model could do: one that cannot is another, whatever was asked for.
    Raises UnsupportedShape of one that no run could be made on.
    """
    if checkpoint.family != opened.family:
        raise _another(
            checkpoint,
            f"of the family {checkpoint.family}, the tape was made on {opened.model}, of the family"
            f" {opened.family}",
        )
    try:
        family_of(checkpoint, choices_of(opened.rules))
    except UnsupportedShape as error:
        family_of(checkpoint)
        raise _another(checkpoint, str(error)) from None
