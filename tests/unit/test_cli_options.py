"""How words become a verb's arguments, and what is said of words that do not."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any

import pytest

from gyrograd import cli
from gyrograd.cli.error_messages import sentence, usage
from gyrograd.cli.inputs import USUAL, Opening
from gyrograd.cli.options import arguments, is_word, options, texts


@dataclass(frozen=True)
class Place:
    """Where.

    Args:
        row: from the
            top.
        flat: without depth.
    """

    row: int | None = 3
    flat: bool = False


NOWHERE = Place()


def put(what: str, place: Place = NOWHERE, times: float = 1.0) -> None:
    """Put a thing somewhere.

    Args:
        what: the thing.
        flat: lying down.
        times: how often.
    """


def verbs() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, verb in cli.verbs().items():
        found |= {f"{name} {i}": v for i, v in verb.items()} if isinstance(verb, dict) else {name: verb}
    return found


every_verb = pytest.mark.parametrize("name", verbs())


def test_the_fields_of_a_settings_class_stand_in_its_place():
    assert list(options(put)) == ["what", "row", "flat", "times"]
    assert options(put)["row"].annotation == (int | None)
    assert [option.default for option in options(put).values()] == [inspect.Parameter.empty, 3, False, 1.0]


def test_the_verbs_own_text_comes_before_that_of_the_class():
    assert texts(put)["flat"] == "lying down."
    assert " ".join(texts(put)["row"].split()) == "from the top."


def test_values_are_put_together_again():
    values = {"what": "it", "row": None, "flat": True, "times": 2.0, "config": None}
    assert arguments(put, values) == {"what": "it", "place": Place(None, True), "times": 2.0}


def parsed(*words: str) -> dict[str, Any]:
    return cli._arguments(put, "gyrograd put", list(words))


def test_options_of_the_class_are_given_without_its_name():
    assert parsed("it") == {"what": "it", "place": Place(), "times": 1.0}
    assert parsed("it", "--row", "5", "--flat") == {"what": "it", "place": Place(5, True), "times": 1.0}


@every_verb
def test_every_option_of_every_verb_is_explained(name):
    verb = verbs()[name]
    assert set(texts(verb)) - {"settings"} <= set(options(verb))
    for option in options(verb):
        assert len(texts(verb)[option]) > 5, option


@pytest.mark.parametrize("name", ["explain", "attack", "audit", "explore"])
def test_verbs_with_a_subject_share_their_options(name):
    taken = {key: option.default for key, option in options(verbs()[name]).items()}
    assert vars(USUAL).items() <= taken.items()
    assert {field.name for field in fields(Opening)} == set(vars(USUAL))


@every_verb
def test_the_help_names_every_option_with_its_text(name, capsys):
    verb = verbs()[name]
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for option, text in texts(verb).items():
        if option in options(verb):
            assert (option if is_word(verb, option) else f"--{option}") in shown
            assert " ".join(text.split())[:30].rpartition(" ")[0] in shown


MISTAKES = {
    ("it", "--rwo", "5"): "'gyrograd put' has no option --rwo: did you mean '--row'?",
    ("it", "-row", "5"): "'gyrograd put' has no option -row: did you mean '--row'?",
    ("it", "--zzz=5"): "'gyrograd put' has no option --zzz=5: known: --flat, --row, --times, what.",
    ("--what", "it"): "Write what without --what: `gyrograd put WHAT`.",
    (
        "it",
        "more",
    ): "'gyrograd put' has no place for 'more'; write `gyrograd put WHAT`, and options as --name value.",
    (): "'gyrograd put' needs what: write `gyrograd put WHAT`; 'gyrograd put --help' says more.",
    ("it", "--row", "many"): "row is 'many'; give a whole number, or see 'gyrograd put --help'.",
    ("it", "--times", "many"): "times is 'many'; give a number, or see 'gyrograd put --help'.",
    ("it", "--row"): "--row has no value; write --row VALUE, or leave it out.",
    ("it", "--flat=yes"): "--flat is switched on by its name alone; leave out =yes.",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_words_that_do_not_fit_are_one_sentence_that_names_the_fix(words):
    with pytest.raises(cli.UserError) as mistake:
        parsed(*words)
    assert str(mistake.value) == MISTAKES[words]


FILES = {
    "row: many": "row is 'many'; give a whole number",
    "rwo: 5": "The file of --config has 'rwo', which 'gyrograd put' does not take: did you mean 'row'?",
    "row: [": "The file of --config is not YAML: ",
    "- row": "The file of --config holds no settings by name; write lines such as `seed: 1`.",
    "flat: maybe": "flat is 'maybe'; give true or false.",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_of_settings_that_does_not_fit_is_one_sentence_too(text, tmp_path):
    (tmp_path / "put.yaml").write_text(text + "\n")
    with pytest.raises(cli.UserError) as mistake:
        parsed("it", "--config", str(tmp_path / "put.yaml"))
    assert str(mistake.value).startswith(FILES[text])


def test_a_file_of_settings_sets_the_fields_of_the_class(tmp_path):
    (tmp_path / "put.yaml").write_text("row: 7\nflat: true\n")
    assert parsed("it", "--config", str(tmp_path / "put.yaml"))["place"] == Place(7, True)


@pytest.mark.parametrize("place", ["none.yaml", "."])
def test_a_file_of_settings_that_is_none_is_named(place, tmp_path):
    with pytest.raises(cli.UserError, match="is not a file of settings; give a YAML file with --config"):
        parsed("it", "--config", str(tmp_path / place))


def test_what_no_rule_knows_is_passed_on():
    said = sentence(put, "gyrograd put", "something else.")
    assert said == "Something else; 'gyrograd put --help' lists what it takes."


def test_the_usage_shows_what_may_be_left_out_or_repeated():
    shown = {name: usage(verb, name) for name, verb in verbs().items()}
    assert shown["explain"] == "explain MODEL DATA ..."
    assert shown["explore"] == "explore [MODELS ...]"
    assert shown["list"] == "list [KIND]"
    assert shown["compare"] == "compare A B"
    assert shown["train"] == "train"
