"""The defaults of every method: one that changes unnoticed changes the numbers of everyone who left it out."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

import gyrograd as gg

# `max_batch` is left out, which changes no number.
DEFAULTS = """
attribution gradient: quantity='logit'
attribution guided_backprop: quantity='logit'
attribution input_x_gradient: quantity='logit'
attribution integrated_gradients: steps=50 baseline='zero' rule='trapezoid' times_input=True quantity='logit'
attribution lime: draws=100 segments='quickshift' grid=8 kernel_size=1.0 max_dist=200.0 ratio=0.1
    kernel='exponential' distance='cosine' width=0.25 ridge=1.0 reduction='sum' intercept=False baseline='zero'
    quantity='logit' sampling='bernoulli' allow_single=False seed=0
attribution lrp: variant='auto' rule=None first=None bias=None batchnorm=None residual=None pool=None
    product=None softmax=None norm=None constants=None start=None gamma=None stabilizer=None quantity='logit'
attribution shap: draws=100 segments='quickshift' grid=8 kernel_size=1.0 max_dist=200.0 ratio=0.1
    baseline='zero' quantity='logit' sampling='paired' allow_single=False seed=0
attribution smoothgrad: sigma=0.1 draws=50 seed=0 quantity='logit'
attribution unigrad: eps=4/255 draws=50 seed=0 quantity='logit'
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
metric center_dislocation: variant='code' reduce='abs_sum'
metric cosine_distance: reduce='abs_sum'
metric deletion: ratios='paper' substrate='model_zero' ties='exact' reduce='abs_sum' quantity='probability'
metric faithfulness: similarity='inverse_l2' segments='grid' grid=10 reference='zero' contribution='slope'
    quantity='logit'
metric infidelity: sigma=0.1 draws=50 perturbation='gaussian' patch=8 baseline='zero' rescale=False
    quantity='logit'
metric insertion: ratios='paper' substrate='model_zero' ties='exact' reduce='abs_sum' quantity='probability'
metric local_lipschitz: sigma=0.03 draws=50 reduce='none' normalize='none' clip=False
metric max_sensitivity: eps=0.02 draws=10 relative=True reduce='none' clip=False
metric model_lipschitz: sigma=0.03 draws=50 quantity='logit' clip=False
metric model_smoothness: sigma=0.03 draws=50 quantity='logit' clip=False
metric random_perturbation_similarity: eps=16/255 draws=10 similarity='cosine' reduce='abs_sum' normalize='max'
    clip=True
metric rank_correlation: reduce='abs_sum'
metric similarity_to_clean: similarity='cosine' reduce='abs_sum' normalize='max'
metric similarity_to_target: similarity='cosine' reduce='abs_sum' normalize='max'
metric top_k_intersection: k=100 variant='code' reduce='abs_sum'
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
