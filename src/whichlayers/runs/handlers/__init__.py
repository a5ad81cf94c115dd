"""Trial handlers: one for each kind of trial. They run it, measure its memory and time, and say how it is stacked."""

from __future__ import annotations

from whichlayers.runs.handlers.base import Handlers, TrialHandler, WorkerContext
from whichlayers.runs.handlers.finetune import FinetuneHandler
from whichlayers.runs.handlers.probe import ProbeHandler
from whichlayers.runs.handlers.word_probe import WordProbeHandler

__all__ = ["HANDLERS", "Handlers", "TrialHandler", "WorkerContext"]

HANDLERS: Handlers = {
    "finetune": FinetuneHandler(),
    "probe": ProbeHandler(),
    "word_probe": WordProbeHandler(),
}
