"""The defaults of every method: one that changes unnoticed changes the numbers of everyone who left it out."""

from __future__ import annotations

import ast
import inspect
import math
import re
from typing import Any

import pytest

import gyrograd as gg
from gyrograd.registry import make

# `max_batch` is left out, which changes no number.
DEFAULTS = """
attribution attention_rollout: heads='mean' quantity='logit'
attribution deep_lift: baseline='zero' quantity='logit'
attribution deep_shap: draws=10 baseline='noise' seed=0 quantity='logit'
attribution grad_cam: layer=None relu=True quantity='logit'
attribution grad_cam_plus_plus: layer=None relu=True eps=0.0 quantity='logit'
attribution gradient: quantity='logit'
attribution gradient_shap: draws=50 baseline='noise' sigma=0.0 seed=0 quantity='logit'
attribution gradient_x_attention: quantity='logit'
attribution guided_backprop: quantity='logit'
attribution hires_cam: layer=None relu=True quantity='logit'
attribution input_x_gradient: quantity='logit'
attribution integrated_gradients: steps=50 baseline='zero' rule='trapezoid' times_input=True quantity='logit'
attribution layer_cam: layer=None relu=True quantity='logit'
attribution lime: draws=100 segments='quickshift' grid=8 kernel_size=1.0 max_dist=200.0 ratio=0.1
    kernel='exponential' distance='cosine' width=0.25 ridge=1.0 reduction='sum' intercept=False baseline='zero'
    quantity='logit' sampling='bernoulli' allow_single=False seed=0
attribution lrp: variant='auto' rule=None first=None bias=None batchnorm=None residual=None pool=None
    product=None softmax=None norm=None constants=None start=None gamma=None stabilizer=None quantity='logit'
attribution occlusion: patch=None stride=None baseline='zero' quantity='logit'
attribution rise: draws=500 grid=7 keep=0.5 baseline='zero' seed=0 quantity='probability'
attribution shap: draws=100 segments='quickshift' grid=8 kernel_size=1.0 max_dist=200.0 ratio=0.1
    baseline='zero' quantity='logit' sampling='paired' allow_single=False seed=0
attribution smooth_lrp: sigma=0.05 draws=8 seed=0 quantity='logit'
attribution smoothgrad: sigma=0.1 draws=50 seed=0 quantity='logit'
attribution unigrad: eps=4/255 draws=50 seed=0 quantity='logit'
attack auto: eps=8/255 norm='linf' steps=20 top_fraction=0.1
attack manipulate: eps=8/255 norm='linf' protocol='own' steps=None step_size=None stepper=None projection=None
    start=None restarts=1 selection=None constraint=None restore=None penalty=None penalty_on=None
    explained=None box=None stop_at=None trace=False twin_beta='auto' transfer_from=None reduce='abs_sum'
    goal='frame' weight=100000000000.0 scale=None
attack mass_center: eps=8/255 norm='linf' protocol='own' steps=None step_size=None stepper=None projection=None
    start=None restarts=1 selection=None constraint=None restore=None penalty=None penalty_on=None
    explained=None box=None stop_at=None trace=False twin_beta='auto' transfer_from=None reduce='abs_sum'
    truncated=None
attack pgd: eps=8/255 norm='linf' loss='cross_entropy' steps=7 step_size=None stepper='steepest'
    projection='clip' start='clean' restarts=1 selection='best' stop_at=None trace=False
attack random: eps=8/255 norm='linf' draws=1 fill='surface' like='untargeted_map'
attack targeted_map: eps=8/255 norm='linf' protocol='own' steps=None step_size=None stepper=None projection=None
    start=None restarts=1 selection=None constraint=None restore=None penalty=None penalty_on=None
    explained=None box=None stop_at=None trace=False twin_beta='auto' transfer_from=None reduce='abs_sum'
    goal='frame'
attack top_k: eps=8/255 norm='linf' protocol='own' steps=None step_size=None stepper=None projection=None
    start=None restarts=1 selection=None constraint=None restore=None penalty=None penalty_on=None
    explained=None box=None stop_at=None trace=False twin_beta='auto' transfer_from=None reduce='abs_sum' k=None
    mask=None judged_by='mass'
attack untargeted_map: eps=8/255 norm='linf' protocol='own' steps=None step_size=None stepper=None
    projection=None start=None restarts=1 selection=None constraint=None restore=None penalty=None
    penalty_on=None explained=None box=None stop_at=None trace=False twin_beta='auto' transfer_from=None
    reduce='abs_sum' measure=None
metric adversarial_insertion: ratios='paper' substrate='model_zero' ties='exact' reduce='abs_sum'
    quantity='probability'
metric brightness_similarity: amount=0.1 similarity='cosine' reduce='abs_sum'
metric center_dislocation: variant='code' reduce='abs_sum'
metric certified_cosine: radius=0.05 sigma=0.1 draws=1000 held_out=100 alpha=0.001 looks=1
metric certified_pixels: radius=0.1 sigma=0.15 top=0.5 draws=1000 held_out=100 alpha=0.001 looks=1 reduce='abs_sum'
metric cosine_distance: reduce='abs_sum'
metric deletion: ratios='paper' substrate='model_zero' ties='exact' reduce='abs_sum' quantity='probability'
metric faithfulness: similarity='inverse_l2' segments='grid' grid=10 reference='zero' contribution='slope'
    quantity='logit'
metric infidelity: sigma=0.1 draws=50 perturbation='gaussian' patch=8 baseline='zero' rescale=False
    quantity='logit'
metric insertion: ratios='paper' substrate='model_zero' ties='exact' reduce='abs_sum' quantity='probability'
metric jpeg_similarity: quality=50 similarity='cosine' reduce='abs_sum'
metric local_lipschitz: sigma=0.03 draws=50 reduce='none' normalize='none' clip=False
metric mass_in_mask: reduce='abs_sum'
metric max_sensitivity: eps=0.02 draws=10 relative=True reduce='none' clip=False
metric model_lipschitz: sigma=0.03 draws=50 quantity='logit' clip=False
metric model_smoothness: sigma=0.03 draws=50 quantity='logit' clip=False
metric parameter_randomization: order='cascading' similarity='spearman' weights='shuffled' weights_seed=0
    reduce='abs_sum' normalize='none'
metric pointing_game: tolerance=0 reduce='abs_sum'
metric random_perturbation_similarity: eps=16/255 draws=10 similarity='cosine' reduce='abs_sum' normalize='max'
    clip=True
metric rank_correlation: reduce='abs_sum'
metric road: ratios=(0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9) sigma=0.01 reduce='abs_sum' quantity='probability'
metric rotation_similarity: degrees=10.0 similarity='cosine' reduce='abs_sum'
metric shift_similarity: share=0.0625 similarity='cosine' reduce='abs_sum'
metric similarity_to_clean: similarity='cosine' reduce='abs_sum' normalize='max'
metric similarity_to_target: similarity='cosine' reduce='abs_sum' normalize='max'
metric soft_stability: radius=4 top=0.25 draws=1000 alpha=0.001 grid=8 baseline='zero'
metric sparseness: reduce='abs_sum'
metric top_k_in_mask: k=None reduce='abs_sum'
metric top_k_intersection: k=100 variant='code' reduce='abs_sum'
metric top_k_nearby: k=None window=1 reduce='abs_sum'
regularizer adversarial: eps=8/255 norm='linf' steps=7 step_size=None start='clean' selection='best'
    batchnorm='train'
regularizer atex: teacher=None protocol='paper' eps=None along=None across=None weight=None temperature=None
    sigma=0.08 draws=10 space='normalized' batchnorm='train'
regularizer cosine: eps=4/255 draws=1 detach_clean=True quantity='logit' space='normalized' batchnorm='batch'
regularizer hessian: draws=1 probe='normal' quantity='logit' space='normalized' batchnorm='batch'
regularizer ig_norm: eps=8/255 steps=7 step_size=None points=50 search_points=5 batchnorm='batch'
regularizer iga: eps=8/255 steps=3 step_size=None weight=0.5 protocol='paper' space='normalized'
    batchnorm='train'
regularizer l2: eps=4/255 draws=1 squared=True detach_clean=True quantity='logit' space='normalized'
    batchnorm='batch'
regularizer l2_cosine: l2=0.1 cosine=1.0 eps=4/255 draws=1 squared=True detach_clean=True quantity='logit'
    space='normalized' batchnorm='batch'
regularizer max_entropy: batchnorm='batch'
regularizer ssr: scale=1.0 channels='all' space='pixel' batchnorm='batch'
kernel gaussian: sigma=0.1
kernel laplace: scale=0.1
kernel uniform: eps=0.1
"""


def listed() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for line in DEFAULTS.replace("\n    ", " ").strip().splitlines():
        name, _, settings = line.partition(": ")
        pairs = (setting.partition("=") for setting in settings.split())
        table[name] = {key: value_of(text) for key, _, text in pairs}
    return table


def value_of(text: str) -> Any:
    """A literal, or a fraction such as 8/255."""
    if text.endswith("/255"):
        return int(text.removesuffix("/255")) / 255
    return ast.literal_eval(text)


@pytest.mark.parametrize(("name", "settings"), listed().items())
def test_the_defaults_are_those_written_here(name: str, settings: dict[str, Any]) -> None:
    kind, _, method = name.partition(" ")
    parameters = inspect.signature(gg.available(kind)[method].factory).parameters
    assert {key: parameters[key].default for key in settings} == settings


def test_every_method_is_listed() -> None:
    kinds = ("attribution", "attack", "metric", "regularizer", "kernel")
    with_settings = {
        f"{kind} {name}"
        for kind in kinds
        for name, entry in gg.available(kind).items()
        if set(inspect.signature(entry.factory).parameters) - {"max_batch"}
    }
    assert with_settings == set(listed())


ZERO_IS_FINE = {
    "metric certified_pixels radius", "metric certified_cosine radius", "metric top_k_nearby window", "ridge",
    "ratio", "l2", "cosine", "settled", "metric pointing_game tolerance", "metric road sigma",
    "attribution grad_cam_plus_plus eps", "attribution gradient_shap sigma",
}  # fmt: skip
LOOKED_AT_WHEN_USED = {"attribution lime grid", "attribution shap grid", "metric top_k_intersection k"}
BELOW_ONE = {"top_fraction", "top", "alpha", "keep", "amount", "share", "regularizer eps"}
LEAST = {"metric certified_cosine draws": 2}
OF_ANY_SIGN = {"attack manipulate weight"}


@pytest.mark.parametrize("name", listed())
def test_a_number_below_its_least_is_refused_and_the_least_is_not(name: str) -> None:
    """Counts begin with 1, radii and widths above 0; what a sentence calls usual is the default."""
    kind, _, method = name.partition(" ")
    for key, parameter in inspect.signature(gg.available(kind)[method].factory).parameters.items():
        skipped = f"{name} {key}" in LOOKED_AT_WHEN_USED | OF_ANY_SIGN or key in {
            "seed",
            "weights_seed",
            "max_batch",
        }
        if type(parameter.default) not in (int, float) or skipped:
            continue
        number = type(parameter.default)  # beside the shapes, 1 is checked to be no float
        from_zero = bool({key, f"{name} {key}"} & ZERO_IS_FINE) or (kind == "attack" and key == "eps")
        least = 0 if from_zero else LEAST.get(f"{name} {key}", 1)
        make(kind, method, **{key: 0.5 if {key, f"{kind} {key}"} & BELOW_ONE else number(least)})
        for value in (-1,) if from_zero else (-1, 0):
            with pytest.raises(gg.UserError) as refused:
                make(kind, method, **{key: number(value)})
            usual = re.search(r"(\d+) is usual", str(refused.value))
            assert usual is None or int(usual[1]) == parameter.default


@pytest.mark.parametrize("name", [name for name in listed() if not re.search("lime| shap|manipulate", name)])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_class_itself_refuses_what_is_no_finite_number(name: str, value: float) -> None:
    """By name such a value never reaches the class."""
    kind, _, method = name.partition(" ")
    factory = gg.available(kind)[method].factory
    for key, parameter in inspect.signature(factory).parameters.items():
        if type(parameter.default) is float:
            with pytest.raises(gg.UserError):
                factory(**{key: value})


def test_one_of_two_weights_may_be_zero_and_not_both() -> None:
    gg.regularizer("l2_cosine", l2=0.0, cosine=1.0)
    gg.regularizer("l2_cosine", l2=1.0, cosine=0.0)
    with pytest.raises(gg.UserError, match="not both 0"):
        gg.regularizer("l2_cosine", l2=0.0, cosine=0.0)
