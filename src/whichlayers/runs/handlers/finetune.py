"""Handler of finetuning trials: the models of a stack are trained as one stacked model."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from whichlayers.engine.cost import MemoryCost, StackTiming, TrialWork
from whichlayers.engine.out_of_memory import is_out_of_memory, out_of_memory_error
from whichlayers.engine.settings import EngineSettings
from whichlayers.errors import WhichlayersError
from whichlayers.runs.assets import Assets
from whichlayers.runs.events import Reporter
from whichlayers.runs.handlers.base import (
    TRAINING_COST,
    TrialHandler,
    WorkerContext,
    count_eval_tokens,
    count_weights,
    mean_length,
)
from whichlayers.trial import Trial

if TYPE_CHECKING:
    from whichlayers.engine.compile_ahead import CompileJob

MATRIX_BYTES = 130  # bytes of a weight matrix in results.db, indices included
MATRICES_PER_LAYER = 6
OPTIMIZER_TOKENS = 150  # tokens in the forward pass that take as long as AdamW, about, on a CPU and on a GPU

log = logging.getLogger(__name__)


def _report_loss(report: Reporter, trials: Sequence[Trial], step: int, losses: list[float]) -> None:
    known = {t.id: loss for t, loss in zip(trials, losses, strict=True) if math.isfinite(loss)}
    report.loss(step, known)


class FinetuneHandler(TrialHandler):
    """Finetunes models."""

    def stack_key(self, trial: Trial, assets: Assets) -> Hashable:
        from whichlayers.engine.finetune import stack_key

        model = assets.model_of(trial)
        return stack_key(trial, model.family, model.depth, model.layers_differ)

    def finetunes(self, trial: Trial) -> bool:
        return True

    def steps(self, trial: Trial) -> int:
        return trial.steps

    def work(self, trials: Sequence[Trial], assets: Assets) -> TrialWork:
        trial = trials[0]
        model, data = assets.model_of(trial), assets.data(trial)
        depth = len(trial.surgery.order or range(model.depth))
        weights = count_weights(depth, model.hidden_size)
        tokens = trial.training.batch_size * mean_length(data.train)
        return TrialWork(
            step=weights * (TRAINING_COST * tokens + OPTIMIZER_TOKENS),
            evaluation=weights * count_eval_tokens(data),
            steps_per_evaluation=trial.steps // self.evaluations(trial),
        )

    def compiles_ahead(self, trial: Trial) -> bool:
        return trial.trains_all_parameters  # `plan_job` supports no others

    def result_bytes(self, trial: Trial, depth: int) -> int:
        return super().result_bytes(trial, depth) + MATRIX_BYTES * MATRICES_PER_LAYER * depth

    def plan_compile_job(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings
    ) -> CompileJob | None:
        from whichlayers.engine.compile_ahead import plan_job

        encoder, data = worker.assets.encoder(trials[0]), worker.assets.data(trials[0])
        return plan_job(trials, encoder, data, worker.device, settings)

    def run(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, report: Reporter
    ) -> None:
        from whichlayers.engine.compilation import warm_up_compiler
        from whichlayers.engine.finetune import finetune

        if worker.on_cuda:
            warm_up_compiler()  # in the background while the model and the data are loaded
        results = finetune(
            trials,
            worker.assets.encoder(trials[0]),
            worker.assets.data(trials[0]),
            device=worker.device,
            on_epoch=report.epoch,
            on_step=report.steps,
            on_restored=report.restored,
            on_loss=partial(_report_loss, report, trials),
            settings=settings,
        )
        report.results(results)

    def measure_memory(self, trial: Trial, worker: WorkerContext, max_stack: int) -> MemoryCost | None:
        """Memory from one step of a stack of one trial and of two trials."""
        from whichlayers.engine.free_memory import free_memory
        from whichlayers.engine.memory import measure_memory

        encoder, data = worker.assets.encoder(trial), worker.assets.data(trial)
        encoder.to(worker.device)  # type: ignore[arg-type]
        free = free_memory(worker.device)
        try:
            return measure_memory([trial], encoder, data, worker.device, free=free, limit=max_stack)
        except WhichlayersError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise out_of_memory_error(None, free or 0, trial, worker.device) from None
            # training will raise the same error for the trials concerned
            log.warning("could not measure the memory of %s on %s: %s", trial.model, trial.task, error)
            return None

    def measure_time(
        self, trials: Sequence[Trial], worker: WorkerContext, settings: EngineSettings, seconds: float
    ) -> StackTiming:
        from whichlayers.engine.timing import measure_timing

        encoder, data = worker.assets.encoder(trials[0]), worker.assets.data(trials[0])
        return measure_timing(trials, encoder, data, worker.device, settings, seconds)
