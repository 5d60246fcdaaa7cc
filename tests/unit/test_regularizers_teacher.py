"""Where the teachers of ATEX and of adversarial training come from, and settings that cannot be meant."""

from __future__ import annotations

import pytest
import torch
from nets import batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError


def test_a_teacher_is_read_from_a_checkpoint_and_named_in_the_repr(tmp_path):
    teacher = gg.model("lenet", num_classes=5, seed=3, activation="softplus", beta=3)
    path = tmp_path / "teacher.safetensors"
    gg.save(path, teacher)
    penalty = gg.regularizer("atex", teacher=str(path), draws=1)
    x, y = torch.rand(2, 3, 32, 32), torch.tensor([0, 4])
    student = gg.model("lenet", num_classes=5, seed=4, activation="softplus", beta=3)
    expected = gg.regularizer("atex", teacher=teacher, draws=1)(student, x, y, seed=0)
    torch.testing.assert_close(penalty(student, x, y, seed=0), expected, rtol=0, atol=0)
    assert f"Teacher('{path}', sha256='" in repr(penalty)


def test_teachers_of_the_same_weights_are_equal_and_others_are_not(tmp_path):
    one, same, other = (gg.regularizer("atex", teacher=net("mlp", seed)) for seed in (1, 1, 2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != gg.regularizer("atex")
    assert repr(one) == repr(same) != repr(other)


def test_with_teacher_keeps_the_settings():
    penalty = gg.regularizer("atex", protocol="reference", eps=0.1, draws=2)
    taught = penalty.with_teacher(net("mlp"))
    assert (taught.protocol, taught.eps, taught.draws, taught.temperature) == ("reference", 0.1, 2, 4.0)
    assert penalty.teacher is None


def test_a_protocol_fills_in_what_is_left_open():
    paper, reference = gg.regularizer("atex"), gg.regularizer("atex", protocol="reference", across=3)
    assert (paper.eps, paper.along, paper.across, paper.weight) == (2.0, 1, 1, 3.0)
    assert (reference.eps, reference.along, reference.across, reference.weight) == (0.32, 2, 3, 1.0)


def test_a_missing_teacher_is_answered_with_what_to_give():
    with pytest.raises(UserError, match="atex has no teacher; give it the path") as refusal:
        gg.regularizer("atex")(net("mlp"), *batch(2))
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="There is no checkpoint at"):
        gg.regularizer("atex", teacher=tmp_path / "none.safetensors")


def test_a_teacher_of_other_classes_is_refused():
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(432, 7)).double()
    with pytest.raises(UserError, match="The teacher has 7 classes and the student 5"):
        gg.regularizer("atex", teacher=teacher)(net("mlp"), *batch(2))


def test_terms_are_logged_by_name():
    x, y = batch(2)
    assert list(gg.regularizer("iga", steps=1).terms(net("mlp"), x, y)) == ["cross_entropy", "triplet"]
    assert list(gg.regularizer("atex", teacher=net("mlp", 1)).terms(net("mlp"), x, y)) == ["clean", "beside"]


def test_a_taught_student_learns_at_the_moved_image_what_the_teacher_answers_at_the_clean_one():
    student, teacher, (x, y) = net("mlp"), net("mlp", 1), batch(4)
    taught = gg.regularizer(
        "adversarial", eps=2 / 255, steps=1, selection="last", teacher=teacher, temperature=3.0
    )
    moved = gg.regularizer("adversarial", eps=2 / 255, steps=1, selection="last").images(
        student, x, y, seed=0
    )
    softened = torch.distributions.Categorical(logits=teacher(x) / 3)
    mine = torch.distributions.Categorical(logits=student(moved) / 3)
    expected = 9 * torch.distributions.kl_divergence(softened, mine)
    torch.testing.assert_close(taught(student, x, y, seed=0), expected, rtol=1e-10, atol=0)
    assert (expected > 0).all()
    assert (moved != x).any()


def test_a_student_that_answers_as_its_teacher_does_has_nothing_to_learn_but_to_hold():
    student, (x, y) = net("mlp"), batch(4)
    still = gg.regularizer("adversarial", eps=1e-12, steps=1, selection="last", teacher=student)
    assert still(student, x, y, seed=0).abs().max() < 1e-12
    moving = gg.regularizer("adversarial", eps=8 / 255, steps=1, selection="last", teacher=student)
    assert (moving(student, x, y, seed=0) > 1e-9).all()


NAN, INF = float("nan"), float("inf")
WRONG = [
    ("ig_norm", {"eps": 0.0}, "finite radius above 0"),
    ("ig_norm", {"eps": NAN}, "eps=nan; give a finite number"),
    ("ig_norm", {"steps": 0}, "steps is 0; give at least 1"),
    ("ig_norm", {"step_size": 0.0}, "a length above 0 in pixel units"),
    ("ig_norm", {"points": 0}, "points is 0; give a path at least 1 point"),
    ("ig_norm", {"search_points": -1}, "search_points is -1"),
    ("iga", {"eps": -0.1}, "finite radius above 0"),
    ("iga", {"step_size": NAN}, "step_size=nan; give a finite number"),
    ("iga", {"weight": 0.0}, "finite weight above 0"),
    ("iga", {"weight": INF}, "weight=inf; give a finite number"),
    ("iga", {"protocol": "papr"}, "did you mean 'paper'"),
    ("iga", {"space": "pixels"}, "did you mean 'pixel'"),
    ("adversarial", {"temperature": 0.0}, "temperature is 0.0; give a finite number above 0"),
    ("atex", {"protocol": "official"}, "There is no protocol 'official'"),
    ("atex", {"eps": 0.0}, "eps is 0.0; give a finite number above 0"),
    ("atex", {"sigma": NAN}, "sigma=nan; give a finite number"),
    ("atex", {"temperature": -1.0}, "temperature is -1.0"),
    ("atex", {"along": 0}, "along is 0; give at least 1"),
    ("atex", {"across": 0}, "across is 0; give at least 1"),
    ("atex", {"draws": 0}, "draws is 0; give at least 1"),
    ("atex", {"weight": -1.0}, "finite weight above 0"),
    ("atex", {"space": "normalised"}, "did you mean 'normalized'"),
]


@pytest.mark.parametrize(("name", "settings", "words"), WRONG)
def test_a_setting_that_cannot_be_meant_is_answered_with_one_sentence(name, settings, words):
    with pytest.raises(UserError, match=words) as refusal:
        gg.regularizer(name, **settings)
    assert "\n" not in str(refusal.value)


def test_a_batch_in_another_precision_leaves_the_teachers_weights_as_they_are():
    model, (x, _) = net("mlp", 1), batch(2)
    for weight in model.parameters():
        weight.data /= 3  # what float32 cannot hold
    teacher = gg.regularizer("atex", teacher=model).teacher
    before = teacher.logits(x)
    assert teacher.logits(x.float()).dtype == torch.float32
    assert torch.equal(teacher.logits(x), before)
