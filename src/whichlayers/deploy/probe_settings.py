"""The settings of the linear probes of a study, of which `build --for features` takes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from whichlayers.deploy.settings import format_settings, trials_with_setting
from whichlayers.trial import Probe, Trial, get_probe


def settings_of(probe: Probe) -> dict[str, Any]:
    """How a probe is trained, and on which hidden states apart from their layer, by key."""
    found = dataclasses.asdict(probe.canonical())
    del found["layer"]
    return found


def probes_with_setting(done: Sequence[Trial], wanted: Mapping[str, str], option: str) -> set[str]:
    """The ids of the finished probes of the setting that the user wants; empty if there are no probes.

    Args:
        done: The finished trials of one model and task.
        wanted: Values by key, as in `settings_of`; they have to leave one setting of the study.
        option: The option of the user that builds features, for the error if several are left.
    """
    probes = [trial for trial in done if trial.kind == "probe"]
    if not probes:
        return set()
    found = trials_with_setting(
        probes, lambda trial: settings_of(get_probe(trial)), wanted, "probes", option, ("pooling", "lr")
    )
    return {trial.id for trial in found}


def setting_options(probes: Mapping[str, Probe]) -> dict[str, str]:
    """The options of `build` that choose the setting of each probe, by trial id: "--setting pooling=mean".

    "" for all if there is one setting.
    """
    settings = {trial_id: tuple(settings_of(probe).items()) for trial_id, probe in probes.items()}
    distinct = list(dict.fromkeys(settings.values()))
    texts = dict(zip(distinct, format_settings(distinct), strict=True))
    return {
        trial_id: " ".join(f"--setting {part}" for part in texts[setting].split())
        for trial_id, setting in settings.items()
    }
