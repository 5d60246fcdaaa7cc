"""Commands in the documentation name verbs and options that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from gyrograd.cli import verbs
from gyrograd.cli.options import options, syntax_of
from gyrograd.training import TrainSettings

ROOT = Path(__file__).parents[2]
EVERYWHERE = {"help", "debug", "config", "print_config"}
SETTINGS = {field.name for field in fields(TrainSettings)}
"""`gyrograd train` takes these besides its own options."""


def unknown_options(text: str) -> list[str]:
    """`VERB --option` for each option of a command in this text that the verb does not have."""
    known, unknown = verbs(), []
    for verb, words in re.findall(r"gyrograd ((?:data )?[a-z]+)\b([^\n`|#;]*)", text.replace("\\\n", " ")):
        folder, _, name = verb.partition(" ")
        found = known.get(folder)
        found = found.get(name) if isinstance(found, dict) else found
        if found is None:
            continue  # a sentence about gyrograd, not a command
        own = {*options(found), *EVERYWHERE, *(SETTINGS if syntax_of(found).free_settings else ())}
        given = re.findall(r"--([a-zA-Z_][\w-]*)", words)
        unknown += [f"{verb} --{option}" for option in given if option.replace("-", "_") not in own]
    return unknown


def test_the_documentation_uses_options_that_exist():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]
    assert len(pages) > 80
    wrong = {str(page.relative_to(ROOT)): unknown_options(page.read_text(encoding="utf-8")) for page in pages}
    assert {page: found for page, found in wrong.items() if found and page != "CHANGELOG.md"} == {}


def test_an_option_that_does_not_exist_is_found():
    text = "gyrograd audit net photos --presett quick\ngyrograd train --recipe x --part 1 \\\n  --terms.l2.eps 1 --lr 1"
    assert unknown_options(text) == ["audit --presett", "train --part"]
