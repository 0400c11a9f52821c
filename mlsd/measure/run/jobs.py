"""From a plan to jobs: the models' files, the prompts' texts, one job a load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlsd.measure.messages import Job, ModelFile, PromptText, Slot, prompt_key
from mlsd.planning.plan import Group, Plan
from mlsd.planning.prompts import LoadPrompt, load_prompt
from mlsd.records import PromptRef


def plan_jobs(
    plan: Plan, paths: Mapping[str, Path], *, cool_down_s: float = 0.0, load: LoadPrompt = load_prompt
) -> tuple[Job, ...]:
    """One job for each load of the plan; `paths` gives the file of each model id, `load` the text of each prompt."""
    return tuple(_job(group, paths, cool_down_s, load) for group in plan.groups)


def _job(group: Group, paths: Mapping[str, Path], cool_down_s: float, load: LoadPrompt) -> Job:
    slots = tuple(
        Slot(case=trial.case, case_id=trial.case_id, block=block.number, repeat=block.repeat, position=position)
        for block in group.blocks
        for position, trial in enumerate(block.trials)
    )
    models = [model for model in (group.target, group.draft) if model is not None]
    files = [ModelFile(ref=model, path=str(paths[model.id])) for model in models]
    prompts = {prompt_key(slot.case.prompt): slot.case.prompt for slot in slots}
    return Job(
        target=files[0],
        models=tuple(files[1:]),
        prompts={key: prompt_text(prompt, load) for key, prompt in prompts.items()},
        slots=slots,
        cool_down_s=cool_down_s,
    )


def prompt_text(ref: PromptRef, load: LoadPrompt = load_prompt) -> PromptText:
    """What a worker needs of a prompt."""
    prompt = load(ref.key)
    return PromptText(text=prompt.text, n_tokens=ref.n_tokens, chat=prompt.chat, earlier=prompt.earlier)
