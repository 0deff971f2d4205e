"""Hints for users of other tools: maps their option names to ElasticDL's.

A user who types `--epochs` or passes `callbacks=` gets a hint that names the option, or the part
of the model file, to use instead.

Callers: `cli/main.py`, `job_options.py`.
"""

from __future__ import annotations

_IN_PARAMS = (
    "It is a parameter of the model's functions, such as optimizer(learning_rate=0.001): use "
    "--params='{name}=...'."
)
_LABEL = (
    "It is a parameter of the prebuilt table models: use --params='label=\"NAME\"' with the name "
    "of the column. In your own model file, input_fn returns the labels."
)
_DEVICES = (
    "A GPU is used if there is one. --num_workers trains on several workers, --gpus_per_worker "
    "gives each its GPUs."
)
_RESUME = "The same command resumes training from the newest checkpoint in its --output."
_CALLBACKS = "Callbacks are returned by callbacks() in the model file."
_IN_THE_FILE = "It is set in the model file: `{name}`."
_EARLY = (
    f"{_CALLBACKS} EarlyStopping is one of them; --restore_best_weights keeps the best weights."
)
_A_MODEL = (
    "Pass the function or the file that makes it: --model_def, and --model_zoo for your own files. "
    "If you have already compiled a Keras model, save it and use --spec; see the guide "
    '"Saved models".'
)
_USE = "Use {option}."

# Where several tools have the same name, they mean the same.
_OPTIONS = {
    "--num_epochs": "epochs epoch n_epochs max_epochs num_train_epochs",
    "--max_steps": "steps num_steps total_steps train_steps",
    "--minibatch_size": "bs per_device_train_batch_size minibatch batchsize",
    "--data": "training_data train_data dataset data_dir training_set train_dataset",
    "--validation_data": "val_data eval_data valid_data val_dataset test_data eval_dataset",
    "--validation_split": "val_split validation_fraction",
    "--output": "output_dir out save_dir log_dir logdir checkpoint_dir default_root_dir model_dir",
    "--num_workers": "workers nproc_per_node world_size num_processes distribution_strategy",
    "--checkpoint_steps": "save_steps checkpoint_freq save_freq",
    "--evaluation_steps": "eval_steps val_check_interval validation_freq",
    "--quiet": "verbose verbosity",
    "--model_def, and --model_zoo for your own files": "model_name model_file",
    "--global_batch_size": "accumulate_grad_batches gradient_accumulation_steps grads_to_wait",
    "--image": "image_name docker_image",
    "--trained_model": "checkpoint weights",
    "--best_metric": "monitor",
}
_SENTENCES = {
    _A_MODEL: "model",
    _IN_PARAMS: "lr learning_rate weight_decay momentum dropout hidden_size num_layers",
    _LABEL: "label labels label_column label_name target target_column",
    _DEVICES: "devices device gpus num_gpus n_gpus accelerator cuda use_gpu",
    _RESUME: "resume resume_from resume_from_checkpoint ckpt_path continue",
    _CALLBACKS: "callbacks callback",
    _EARLY: "patience early_stopping",
    _IN_THE_FILE: "precision gradient_clipping lr_scheduler class_weight",
}
_HINTS = {
    name: _USE.format(option=option) for option, names in _OPTIONS.items() for name in names.split()
} | {
    name: sentence.format(name=name)
    for sentence, names in _SENTENCES.items()
    for name in names.split()
}


def hint(name: str) -> str | None:
    """Return a sentence that names the equivalent of another tool's option; None if unknown.

    Args:
        name: The other tool's option, without leading dashes: `epochs`, `batch-size`.

    Example:
        >>> hint("epochs")
        'Use --num_epochs.'
    """
    return _HINTS.get(name.replace("-", "_").lower())
