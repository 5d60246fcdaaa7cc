"""Image classifiers of Hugging Face transformers: by kind (`hf:vit`), from a folder, or from the hub.

A folder is one that `save_pretrained` wrote. Only its safetensors are read; pickles and code in it are never run.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from gyrograd.errors import UserError, did_you_mean, in_one_sentence
from gyrograd.models.specs import ModelSpec, attach_spec
from gyrograd.models.wrappers import Normalized, Statistics
from gyrograd.registry import Settings
from gyrograd.types import Inputs, Logits

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
UNNORMALIZED = (
    f"Its folder has no {PREPROCESSOR}, so pixels in [0, 1] reach the model as they are; give the normalisation it was "
    "trained with, if any."
)
_OTHER_INPUTS = {"imagegpt", "perceiver", "shieldgemma2"}
"""Kinds of classifiers that need more than an image."""
_LEADS_ELSEWHERE = {
    "auto_map", "quantization_config", "use_pretrained_backbone", "backbone", "backbone_kwargs", "use_timm_backbone",
}  # fmt: skip
"""Settings of a configuration that would run code or read files other than the model's own."""
_NOT_OF_THE_NET = {
    "architectures", "dtype", "torch_dtype", "id2label", "label2id", "model_type", "transformers_version",
}  # fmt: skip
_SPELLINGS = {"num_classes": "num_labels", "in_channels": "num_channels"}


class ImageClassifier(nn.Module):
    """A transformers classifier that returns its logits, without the object around them."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        size: Any = getattr(core.config, "image_size", None)
        sides = {size} if isinstance(size, int) else set(size or ())
        if len(sides) == 1:
            self.image_size = int(sides.pop())

    def forward(self, x: Inputs) -> Logits:
        logits: Logits = self.core(pixel_values=x, return_dict=True).logits
        return logits


def build_untrained(kind: str, settings: Settings) -> nn.Module:
    """A classifier of this kind (`vit`, `swin`, ...) with random weights; settings are those of its configuration."""
    settings = {_SPELLINGS.get(name, name): value for name, value in settings.items()}
    library = _library()
    _check_kind(library, kind)
    usual = library.AutoConfig.for_model(kind)
    for name in settings:
        if name in _LEADS_ELSEWHERE:
            raise UserError(f"hf:{kind} does not take '{name}', which could read other files; leave it out.")
        if not hasattr(usual, name):
            raise UserError(f"hf:{kind} has no setting '{name}': {did_you_mean(name, usual.to_dict())}")
    config = library.AutoConfig.for_model(kind, **settings)
    return ImageClassifier(
        library.AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    )


def open_trained(place: str, statistics: Statistics | None = None) -> nn.Module:
    """The classifier of a folder, or of the hub by `OWNER/NAME`.

    It is normalised by `statistics` (mean and deviation), or as the preprocessor next to its weights does.
    """
    library = _library()
    folder = Path(place).expanduser()
    local = folder.is_dir()
    source = str(folder) if local else place

    def sentence(reason: str) -> str:
        return (
            f"{place} could not be opened as a classifier of transformers ({reason}); give a folder with {CONFIG} and "
            "model.safetensors, as save_pretrained writes it."
        )

    with _quietly(library), in_one_sentence(sentence):
        config = library.AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
        _check_kind(library, config.model_type)
        elsewhere = [name for name in sorted(_LEADS_ELSEWHERE) if getattr(config, name, None)]
        if elsewhere:
            raise UserError(
                f"{place} needs '{elsewhere[0]}' besides its weights, which is not loaded; give a model without it."
            )
        core, report = library.AutoModelForImageClassification.from_pretrained(
            source,
            config=config,
            local_files_only=local,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        statistics = _statistics(library, source, local) if statistics is None else statistics
    absent = [str(name) for part in ("missing_keys", "mismatched_keys") for name in report[part]]
    if absent:
        raise UserError(
            f"{place} has no weights for '{min(absent)}' of an image classifier ({len(absent)} are missing or of "
            "another shape); give a folder that was saved from a trained classifier."
        )
    model = ImageClassifier(core)
    # The settings that `build_untrained` needs to build the net again.
    settings = {name: value for name, value in config.to_diff_dict().items() if name not in _NOT_OF_THE_NET}
    settings["num_classes"] = config.num_labels
    attach_spec(model, ModelSpec(f"hf:{config.model_type}", settings))
    if statistics is None:
        model.__dict__["note"] = UNNORMALIZED
        return model
    return Normalized(model, *statistics)


def is_folder_of_transformers(path: Path) -> bool:
    """True if `save_pretrained` may have written it: its config.json names a kind of model."""
    try:
        return "model_type" in json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _statistics(library: Any, source: str, local: bool) -> Statistics | None:
    """Mean and deviation of the channels, as the preprocessor next to the model has them; None if there is none."""
    try:
        options, _ = library.image_processing_utils.BaseImageProcessor.get_image_processor_dict(
            source, local_files_only=local
        )
    except OSError:
        return None
    if not options.get("do_normalize", True) or "image_mean" not in options:
        return None
    return options["image_mean"], options["image_std"]


def _check_kind(library: Any, kind: str) -> None:
    names = importlib.import_module("transformers.models.auto.modeling_auto")
    kinds = set(names.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES) - _OTHER_INPUTS - {"timm_wrapper"}
    if kind == "timm_wrapper":
        raise UserError("This is a model of timm in a wrapper; name it as timm:NAME and give its weights.")
    if kind not in kinds:
        raise UserError(
            f"transformers {library.__version__} has no image classifier '{kind}': {did_you_mean(kind, kinds)}"
        )


def _library() -> Any:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError:
        raise UserError(
            "Models of Hugging Face need transformers: pip install 'gyrograd[transformers]'."
        ) from None


@contextmanager
def _quietly(library: Any) -> Iterator[None]:
    """Silence the library's progress bars and remarks; missing weights are an error here instead."""
    log = library.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
