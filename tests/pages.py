"""Reads a page as strictly as a validator: what is open must be closed, names once, nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input", "hr", "link", "wbr", "col"}
ADDRESSES = {"src", "href", "xlink:href", "action", "poster", "data", "srcset", "formaction"}


class Reader(HTMLParser):
    """Collects tags, ids, addresses and text; complaints are sentences."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.complaints: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.complaints.append(f"<{tag}> names an attribute twice")
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.complaints.append(f"</{tag}> closes what is not open")

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data


def read(html: str) -> Reader:
    """The page, read; `complaints` lists all that is wrong with it."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    reader.complaints += [f"<{tag}> is never closed" for tag in reader.open]
    reader.complaints += [f"id {name} stands twice" for name in set(reader.ids) if reader.ids.count(name) > 1]
    for tag, found in reader.tags:
        reader.complaints += _address_complaints(tag, found, reader.ids)
        if tag == "img" and not found.get("alt"):
            reader.complaints.append("an <img> without alt text")
        if tag == "svg" and not (found.get("role") == "img" and found.get("aria-label")):
            reader.complaints.append("an <svg> without a label")
        reader.complaints += [f"<{tag}> runs {name}" for name in found if name.startswith("on")]
    if re.search(r"@import|url\(\s*['\"]?(?!#)", html):
        reader.complaints.append("the style fetches something")
    return reader


def _address_complaints(tag: str, found: dict[str, str], ids: list[str]) -> list[str]:
    complaints = []
    for name in ADDRESSES & set(found):
        address = found[name]
        if address.startswith("#"):
            if address[1:] not in ids:
                complaints.append(f"{address} leads nowhere")
        elif not address.startswith(("data:image/png;base64,", "./")):
            complaints.append(f"<{tag} {name}> fetches {address}")
    return complaints
