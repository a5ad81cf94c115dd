"""Names that other libraries use for keys and experiments of a study file, for suggestions in error messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from whichlayers.config.errors import close_match

# our key -> other names, in lower case with underscores
KEYS: dict[str, tuple[str, ...]] = {
    # [training]
    "lr": ("learning_rate", "learningrate", "step_size", "peak_lr"),
    "batch_size": ("batch", "batchsize", "bs", "train_batch_size", "per_device_train_batch_size"),
    "epochs": ("epoch", "n_epochs", "num_epochs", "num_train_epochs", "max_epochs", "nepochs"),
    "weight_decay": ("wd", "decay", "l2_reg"),
    "clip_norm": ("clip", "grad_clip", "gradient_clipping", "max_grad_norm", "clip_grad_norm"),
    "warmup": ("warmup_ratio", "warmup_steps", "warmup_proportion", "warmup_fraction", "num_warmup_steps"),
    "schedule": ("scheduler", "lr_schedule", "lr_scheduler", "lr_scheduler_type"),
    "max_length": (
        *("max_len", "maxlen", "length", "max_seq_length", "max_seq_len"),
        *("max_sequence_length", "seq_len", "seq_length", "max_tokens"),
    ),
    "dropout": ("dropout_prob", "dropout_rate", "hidden_dropout_prob", "p_dropout"),
    "eps": ("epsilon", "adam_epsilon", "adam_eps"),
    "betas": ("beta", "adam_betas", "adam_beta1", "adam_beta2", "beta1", "beta2"),
    "precision": ("dtype", "torch_dtype", "fp16", "bf16", "mixed_precision", "amp"),
    "evaluate": ("eval", "eval_strategy", "evaluation_strategy", "eval_steps", "evaluate_every"),
    # top of the file
    "trials": (
        *("trial", "seeds", "n_trials", "num_trials", "runs", "n_runs", "num_runs"),
        *("n_seeds", "num_seeds", "repeats", "repetitions", "replicates"),
    ),
    "seed": ("random_seed", "random_state", "rng_seed"),
    "train_sizes": (
        *("train_size", "sizes", "size", "n_train", "num_train", "examples", "n_examples", "num_examples"),
        *("train_examples", "n_samples", "num_samples", "max_train_samples", "training_sizes", "subset_size"),
    ),
    "models": ("model", "model_name", "model_name_or_path", "checkpoint", "encoder", "pretrained_model"),
    "tasks": ("task", "task_name", "dataset", "datasets", "dataset_name", "data"),
    "corpora": ("corpus", "corpuses"),
    "experiments": ("experiment", "analysis", "analyses", "methods", "method"),
    "training": (
        "train_args",
        "training_args",
        "training_arguments",
        "hyperparameters",
        "hparams",
        "optimizer",
    ),
    "recipe": ("reinit", "initialization", "init_method", "recipes"),
    "head": ("pooling", "classifier", "pool"),
    "description": ("comment", "notes", "note", "about"),
    # [[models]], [[tasks]], [[corpora]]
    "name": (  # after models and tasks: at the top of the file, a model_name is one of the models
        *(
            "title",
            "study",
            "study_name",
            "id",
            "path",
            "model",
            "model_name",
            "model_name_or_path",
            "checkpoint",
        ),
        *("task", "task_name", "dataset", "dataset_name", "corpus"),
    ),
    "revision": ("commit", "branch", "tag"),
    "source": ("data_dir", "folder", "data_folder", "dir", "root"),
    "train": ("train_file", "train_data", "train_path", "training_file", "train_set"),
    "dev": (
        "dev_file",
        "validation",
        "valid",
        "val",
        "validation_file",
        "eval_file",
        "test",
        "test_file",
        "dev_set",
    ),
    "test": ("test_file", "test_data", "eval_file"),
    "text": ("texts", "sentence", "sentence1", "text_column", "text_a", "input", "text_col"),
    "pair": ("text_pair", "sentence2", "text_b", "text2", "second", "pair_column"),
    "label": ("labels", "target", "targets", "label_column", "label_col", "y", "class"),
    "metric": ("metrics", "score", "eval_metric"),
    "kind": ("type", "experiment", "task_type", "problem_type"),
    "pair_template": ("template", "prompt", "prompt_template"),
    # experiments
    "keep": ("k", "ks", "keep_layers", "layers_kept"),
    "top": ("top_layers", "n_top"),
    "bottom": ("bottom_layers", "n_bottom"),
    "drop": ("drop_layers", "dropped", "layers_dropped"),
}
# kind of experiment -> other names
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "incremental": ("reinit", "reinitialize", "reinitialization", "re_initialization", "partial_reinit"),
    "localized": ("local", "block", "blocks", "localised"),
    "single_layer": ("single", "one_layer", "layer", "ablation", "leave_one_out"),
    "permutation": ("permute", "permutations", "shuffle", "permuted"),
    "prune": ("pruning", "pruned", "drop", "layer_drop", "layerdrop", "layer_pruning", "truncate"),
    "freeze": ("freezing", "frozen", "layer_freezing"),
    "lr_decay": ("llrd", "layerwise_lr_decay", "layer_wise_lr_decay", "layerwise_learning_rate_decay"),
    "adapt": ("lora", "ia3", "adapter", "adapters", "peft", "adaptation"),
    "probing": ("probe", "probes", "linear_probe", "linear_probing", "features", "feature_extraction"),
    "word_probing": ("word_probe", "word_probes", "token_probing", "pos", "pos_tagging", "tagging"),
    "neurons": ("neuron", "neuron_ranking", "top_neurons"),
    "selectivity": ("control", "control_task", "control_tasks"),
}
SEEDS = "seeds"  # may mean their number or the first of them


def synonym_of(word: str, allowed: Collection[str], names: dict[str, tuple[str, ...]] = KEYS) -> str | None:
    """The allowed key or experiment that other libraries call `word`; None if there is none. Ignores case."""
    plain = word.lower().replace("-", "_").replace(" ", "_")
    if plain in allowed:
        return plain
    return next((key for key, others in names.items() if plain in others and key in allowed), None)


def suggest_key(word: str, allowed: Iterable[str]) -> str:
    """ " did you mean `lr`?" for a key that is not allowed, from synonyms and similar keys; empty without either."""
    allowed = list(allowed)
    if word.lower() == SEEDS and {"trials", "seed"} <= set(allowed):
        return " did you mean `trials` (how many seeds) or `seed` (the first seed)?"
    found = synonym_of(word, allowed)
    return close_match(word, allowed) if found is None else f" did you mean `{found}`?"


def suggest_experiment(word: str, allowed: Iterable[str]) -> str:
    """ " did you mean `prune`?" for an unknown kind of experiment; empty if no kind is similar."""
    allowed = list(allowed)
    found = synonym_of(word, allowed, EXPERIMENTS)
    return close_match(word, allowed) if found is None else f" did you mean `{found}`?"
