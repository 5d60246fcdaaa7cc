"""The page in a real browser: served by the command, its numbers those of the library, nothing asked of the net."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from explorer_client import PageClient
from PIL import Image
from playwright.sync_api import expect, sync_playwright

import gyrograd as gg
from gyrograd.data.opening import open_data
from gyrograd.explorer import Plan, attack_image, markup, open_stage
from gyrograd.explorer.style import SCRIPT
from gyrograd.models import save

SEED = 5
PATIENCE_MS = 180_000
"""A busy machine is slow, not wrong."""
# Runs the command and notes every address outside this machine that the server asks for.
WATCHED_COMMAND = """
import signal, socket, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background has it switched off
noted, resolve, connect = open(sys.argv[1], "a", buffering=1), socket.getaddrinfo, socket.socket.connect
home = ("127.0.0.1", "localhost", "::1", "0.0.0.0", None)
def resolving(host, *rest, **more):
    if host not in home: noted.write(f"resolve {host}\\n")
    return resolve(host, *rest, **more)
def connecting(self, address):
    if isinstance(address, tuple) and address[0] not in home: noted.write(f"connect {address}\\n")
    return connect(self, address)
socket.getaddrinfo, socket.socket.connect = resolving, connecting
from gyrograd.cli import main
sys.exit(main(sys.argv[2:]))
"""

# Gradio leaves event loops open wherever a page is built, so this one is built in a process of its own.
TABS = """
import sys
from pathlib import Path
from gyrograd.explorer import open_stage
from gyrograd.explorer.page import page
from gyrograd.explorer.sessions import Sessions
blocks = page(open_stage([sys.argv[1]], sys.argv[2]), Sessions(Path(sys.argv[3])))
print(*(part["props"]["label"] for part in blocks.config["components"] if part["type"] == "tabitem"))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two small nets, four images, a file that is no image."""
    folder = tmp_path_factory.mktemp("explorer")
    for seed, name in enumerate(("one", "two")):
        save(folder / f"{name}.safetensors", gg.model("lenet", activation="softplus", beta=10, seed=seed))
    pictures = gg.dataset("shapes", split="test", n=5)
    for number, image in enumerate(pictures.images):
        place = folder / ("set" if number < 4 else "own")
        place.mkdir(exist_ok=True)
        Image.fromarray(image.movedim(0, -1).numpy()).save(place / f"{number}.png")
    (folder / "own" / "broken.png").write_bytes(b"no picture")
    (folder / "temporary").mkdir()
    return folder


def started(home: Path, port: int) -> subprocess.Popen[str]:
    models = [str(home / f"{name}.safetensors") for name in ("one", "two")]
    words = ["explore", *models, "--data", str(home / "set"), "--port", str(port), "--seed", str(SEED)]
    environment = os.environ | {"TMPDIR": str(home / "temporary"), "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-c", WATCHED_COMMAND, str(home / "asked.txt"), *words, "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture(scope="module")
def process(home):
    running = started(home, free_port())
    yield running
    running.kill()
    running.communicate()


@pytest.fixture(scope="module")
def server(process):
    """The address the command prints once the page answers."""
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:"), process.stderr.read()
    return address


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        expect.set_options(timeout=PATIENCE_MS)
        yield chromium
        chromium.close()


def new_tab(browser, width: int = 1280, height: int = 900):
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.set_default_timeout(PATIENCE_MS)
    return tab


@pytest.fixture
def page(browser, server):
    """The page, just opened; afterwards: the browser asked nobody else and no script failed."""
    asked: list[str] = []
    failed: list[str] = []
    tab = new_tab(browser)
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: failed.append(str(error)))
    tab.goto(server)
    tab.wait_for_selector("#gg-attack-out .gg-result")
    yield tab
    tab.close()
    assert [url for url in asked if not url.startswith((server, "data:", "blob:"))] == []
    assert failed == []


@pytest.fixture(scope="module")
def stage(home):
    models = [str(home / f"{name}.safetensors") for name in ("one", "two")]
    return open_stage(models, str(home / "set"), seed=SEED)


def opened_tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def number(page, place: str, key: str, model: int = 0) -> float:
    cell = page.locator(f'#{place} td[data-number="{key}"][data-model="{model}"]')
    cell.wait_for()
    return float(cell.get_attribute("data-value"))


def set_slider(page, label: str, value: float) -> None:
    """The number box of a slider that is seen."""
    box = page.locator(f'input[type="number"][aria-label*="{label}"]:visible').first
    box.fill(str(value))
    box.press("Enter")


def test_chosen_methods_are_shown_as_maps_alone_and_over_the_image(page):
    opened_tab(page, "Explain")
    page.get_by_role("checkbox", name="LRP", exact=True).check()
    page.get_by_role("checkbox", name="SmoothGrad").uncheck()
    # There were three before as well: wait for the answer in which one has come and one has gone.
    expect(page.locator('#gg-explain-out:not([data-old]) [data-method="lrp"]')).to_have_count(1)
    expect(page.locator('#gg-explain-out [data-method="smoothgrad"]')).to_have_count(0)
    methods = page.locator("#gg-explain-out .gg-method").evaluate_all(
        "all => all.map(one => one.dataset.method)"
    )
    assert sorted(methods) == ["gradient", "integrated_gradients", "lrp"]
    sizes = page.locator("#gg-explain-out .gg-method img").evaluate_all(
        "all => all.map(one => one.naturalWidth)"
    )
    assert sizes == [224] * 6


def test_an_attack_shows_the_numbers_of_the_library_and_its_pictures_can_be_fetched(page, stage):
    set_slider(page, "Image of", 2)
    expect(page.locator("#gg-preview")).to_contain_text("2.png")
    set_slider(page, "eps", 8)
    set_slider(page, "Steps", 6)
    scene = attack_image(stage.nets[0], stage.image(2), None, Plan(eps=8 / 255, steps=6), seed=SEED)
    steps = int(scene.hit.steps)
    expect(page.locator("#gg-attack-out td[data-number=steps]")).to_have_text(str(steps))
    assert number(page, "gg-attack-out", "kept") == pytest.approx(scene.kept)
    assert number(page, "gg-attack-out", "cosine") == pytest.approx(scene.cosine, abs=1e-4)
    assert number(page, "gg-attack-out", "budget") == pytest.approx(float(scene.hit.budget_used), abs=1e-4)
    assert number(page, "gg-attack-out", "steps") == steps
    with page.expect_download() as fetched:
        page.click("#gg-attack-save")
    names = zipfile.ZipFile(io.BytesIO(Path(fetched.value.path()).read_bytes())).namelist()
    assert {"record.json", "sheet.png", "00000_map_attacked.png"} <= set(names)


def test_two_models_are_compared_on_an_image_of_the_users_own(page, stage, home):
    page.locator("#gg-file input[type=file]").set_input_files(home / "own" / "4.png")
    expect(page.locator("#gg-preview")).to_contain_text("4.png")
    opened_tab(page, "Compare")
    set_slider(page, "Steps", 4)
    x = open_data(str(home / "own" / "4.png"), size=32).pixels(torch.arange(1))
    scenes = [attack_image(net, x, None, Plan(steps=4), seed=SEED) for net in stage.nets]
    expect(page.locator("#gg-compare-out td[data-number=steps]").first).to_have_text(
        str(int(scenes[0].hit.steps))
    )
    for place, scene in enumerate(scenes):
        assert number(page, "gg-compare-out", "kept", place) == pytest.approx(scene.kept)
        assert number(page, "gg-compare-out", "cosine", place) == pytest.approx(scene.cosine, abs=1e-4)
    assert page.locator("#gg-compare-out .gg-verdict").inner_text().count("%") == 2
    page.get_by_text("Samples").click()
    page.locator(".gg-samples button:visible").first.click()  # the number stays 0, the file gives way
    expect(page.locator("#gg-preview")).to_contain_text("0.png")
    expect(page.locator("#gg-file")).not_to_contain_text("4.png")


def test_a_file_that_is_no_image_is_one_sentence(page, home):
    page.locator("#gg-file input[type=file]").set_input_files(home / "own" / "broken.png")
    expect(page.locator("#gg-preview [role=alert]")).to_have_text(
        "broken.png cannot be read as an image; give a PNG or JPEG file."
    )
    opened_tab(page, "Explain")
    expect(page.locator("#gg-explain-out [role=alert]")).to_contain_text("cannot be read")


# Looks at every frame the browser draws: an answer that is not about the image on the left, or not the answer to the
# last question, must be dimmed, and no other.
EVERY_FRAME = """
() => {
  window.seen = { frames: 0, dimmed: 0, wrong: [] };
  let asked = 0;
  // Two questions may come and the later one go again between two frames, if their messages arrive in the wrong order.
  const count = () => {
    const number = document.querySelector("#gg-attack-asked [data-asked]")?.dataset.asked;
    asked = Math.max(asked, Number(number ?? 0));
  };
  const changes = { childList: true, subtree: true, attributeFilter: ["data-asked"] };
  new MutationObserver(count).observe(document.querySelector("#gg-attack-asked"), changes);
  count();
  const look = () => {
    const image = document.querySelector("#gg-preview [data-image]").dataset.image;
    const out = document.querySelector("#gg-attack-out"), answer = out.querySelector("[data-answers]");
    const faded = getComputedStyle(out.querySelector(".html-container")).opacity < 0.5;
    const old = answer.dataset.image !== image || Number(answer.dataset.answers) !== asked;
    window.seen.frames += 1;
    window.seen.dimmed += faded;
    if (old !== faded) window.seen.wrong.push([image, answer.dataset.image, asked, answer.dataset.answers]);
    requestAnimationFrame(look);
  };
  look();
}
"""


def test_no_frame_shows_an_answer_beside_another_image_or_settings(page):
    page.evaluate(EVERY_FRAME)
    first = page.locator("#gg-attack-out .gg-large img").nth(0).get_attribute("src")
    for number in (1, 3, 2, 0, 3):  # faster than the answers come
        set_slider(page, "Image of", number)
        page.wait_for_timeout(150)
    expect(page.locator("#gg-preview")).to_contain_text("3.png")
    settled = page.locator('#gg-attack-out:not([data-old]) [data-image="3"]')
    settled.wait_for()
    assert page.locator("#gg-attack-out .gg-large img").nth(0).get_attribute("src") != first
    set_slider(page, "eps", 2)
    expect(page.locator("#gg-attack-out caption")).to_contain_text("eps 2/255")
    page.locator("#gg-attack-settings textarea, #gg-attack-settings input").first.fill("quantity=probability")
    page.keyboard.press("Enter")
    expect(page.locator("#gg-attack-out caption")).to_contain_text("quantity=probability")
    seen = page.evaluate("window.seen")
    assert seen["wrong"] == []
    assert seen["frames"] > seen["dimmed"] > 0


def test_an_answer_that_is_up_to_date_is_not_faded_by_a_pending_event(page):
    page.locator("#gg-attack-out:not([data-old])").wait_for()
    opacity = page.locator("#gg-attack-out .html-container").evaluate(
        "one => { one.classList.add('pending'); return getComputedStyle(one).opacity; }"
    )
    assert opacity == "1"


def test_replies_that_arrive_in_the_wrong_order_leave_the_last_answer_undimmed(browser):
    page = new_tab(browser)
    preview, note = '<div id="gg-preview"><b data-image="0"></b></div>', markup.computing_note(1)
    answer = markup.about_image("<p>first</p>", "0", 1)
    page.set_content(f'{preview}<div id="gg-attack-asked">{note}</div><div id="gg-attack-out">{answer}</div>')
    page.add_script_tag(content=SCRIPT)

    def arrives(place: str, html: str) -> bool:
        """Whether the answer is dimmed after this reply."""
        page.evaluate("([id, html]) => { document.getElementById(id).innerHTML = html; }", [place, html])
        return page.locator("#gg-attack-out[data-old]").count() == 1

    assert not arrives("gg-attack-asked", markup.computing_note(1))
    assert arrives("gg-attack-asked", markup.computing_note(3))
    assert arrives("gg-attack-asked", markup.computing_note(2))
    assert arrives("gg-attack-out", markup.about_image("<p>second</p>", "0", 2))
    assert not arrives("gg-attack-out", markup.about_image("<p>third</p>", "0", 3))
    assert arrives("gg-attack-asked", markup.computing_note(10))
    page.close()


def test_a_hidden_tab_is_computed_anew_when_it_is_opened(page):
    opened_tab(page, "Explain")
    page.locator("#gg-explain-out .gg-method").first.wait_for()
    opened_tab(page, "Attack")
    set_slider(page, "Image of", 1)
    page.locator('#gg-attack-out:not([data-old]) [data-image="1"]').wait_for()
    opened_tab(page, "Explain")
    page.locator('#gg-explain-out:not([data-old]) [data-image="1"] .gg-method').first.wait_for()


def start_long_attack(page) -> None:
    """SmoothGrad, 200 steps; the steps come last, so that a progress "of 200" is that of the last thing asked.

    By `targeted_map`: `auto` ends as soon as nothing of the top is left, perhaps before anyone reads its progress.
    """
    for menu, choice in (("Method", "SmoothGrad"), ("Attack", "Targeted map")):
        page.locator(f'input[aria-label="{menu}"]:visible').click()
        page.get_by_role("option", name=choice, exact=True).click()
    set_slider(page, "Steps", 200)


def test_a_stop_ends_the_attack(page):
    start_long_attack(page)
    page.wait_for_function("document.body.innerText.includes(' of 200')")
    page.click("#gg-attack-stop")
    expect(page.locator("#gg-attack-out")).to_contain_text("Stopped at step")


def test_a_stop_in_the_queue_is_obeyed_and_ends_no_one_elses_work(page, browser, server):
    """Two pages: the second waits for the first, is stopped while it waits, and says so when its turn comes."""
    start_long_attack(page)
    page.wait_for_function("document.body.innerText.includes(' of 200')")
    waiting = new_tab(browser)
    with waiting.expect_response(lambda answer: "queue/join" in answer.url):
        waiting.goto(server)
    waiting.wait_for_selector("#gg-attack")
    with waiting.expect_response(lambda answer: "queue/join" in answer.url):
        waiting.click("#gg-attack")
    with waiting.expect_response(lambda answer: "/gradio_api/" in answer.url):
        waiting.click("#gg-attack-stop")
    expect(page.locator("#gg-attack-out")).not_to_contain_text("Stopped")
    page.click("#gg-attack-stop")
    expect(page.locator("#gg-attack-out")).to_contain_text("Stopped at step")
    expect(waiting.locator("#gg-attack-out")).to_contain_text("Stopped at the start.")
    waiting.click("#gg-attack")
    assert number(waiting, "gg-attack-out", "steps") >= 40
    waiting.close()


def test_every_tab_is_there_for_two_models(page):
    assert page.get_by_role("tab").all_inner_texts() == ["Attack", "Compare", "Explain", "Guide"]


def test_a_phone_sees_the_whole_width(browser, server):
    tab = new_tab(browser, 390, 844)
    tab.goto(server)
    tab.wait_for_selector("#gg-attack-out .gg-result")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()


def test_the_server_asks_no_other_machine_and_tells_the_browser_not_to(server, home, browser):
    tab = new_tab(browser)
    policy = tab.goto(server).headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "http" not in policy
    tab.close()
    assert (home / "asked.txt").read_text() == ""


def explain_values(file: object = None) -> list[object]:
    """What the page sends with Explain: image, class, model, methods."""
    return [0, file, -1, "one", ["gradient"], ""]


def test_the_page_is_opened_under_its_own_names_only(server):
    client = PageClient(server, "names")
    assert client.ask("GET", "/")[0] == 200
    assert client.ask("GET", "/", host="localhost")[0] == 200
    for asked in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        status, body = client.ask("GET", "/config", **asked)
        assert status == 403
        assert "components" not in body


def test_no_path_leads_to_a_file_that_is_not_the_pages(server, home):
    client = PageClient(server, "paths")
    secret = home / "secret.txt"
    secret.write_text("the secret")
    up = "/.." * 12
    for path in (
        f"/gradio_api/file={secret}",
        f"/gradio_api/file=.{up}{secret}",
        f"/gradio_api/file={home}/set/../secret.txt",
        f"/static{up}{secret}",
        f"/assets/%2e%2e{up}{secret}",
        f"/gradio_api/file=%2e%2e%2f{str(secret)[1:].replace('/', '%2f')}",
        f"/gradio_api/file/{secret}",
        f"/svelte{up}{secret}",
    ):
        status, body = client.ask("GET", path)
        assert "the secret" not in body, path
        assert status in {200, 400, 403, 404, 405}, path  # 200: Gradio's page for what it does not know


def test_forged_files_are_refused_and_nothing_is_looked_up(server, home):
    client = PageClient(server, "forged")
    kind = {"meta": {"_type": "gradio.FileData"}}
    status, body = client.join("gg-explain", explain_values({"path": str(home / "set" / "0.png"), **kind}))
    assert status >= 400
    assert "not uploaded by a user" in body
    status, body = client.join("gg-explain", explain_values({"path": "http://evil.example/x.png", **kind}))
    assert (status, "fetches nothing" in body) == (400, True)
    assert client.ask("GET", "/gradio_api/file=http://evil.example/x.png")[0] == 403
    assert (home / "asked.txt").read_text() == ""


def test_an_uploaded_name_does_not_leave_the_folder(server, home):
    client = PageClient(server, "upload")
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="../../../escaped.png"\r\n\r\n'
    status, body = client.ask(
        "POST",
        "/gradio_api/upload",
        head + b"here\r\n--x--\r\n",
        content_type="multipart/form-data; boundary=x",
    )
    assert status == 200
    assert "gyrograd-explore-" in body
    assert next(iter(home.rglob("*escaped.png*"))).is_relative_to(home / "temporary")


def test_nothing_is_remembered_of_what_was_run(server):
    client = PageClient(server, "history")
    assert client.config["run_history"] is False
    assert client.ask("GET", "/gradio_api/run-history/records")[0] == 404


def test_twenty_clients_at_once_are_all_answered(server, home):
    def one(number: int) -> bool:
        client = PageClient(server, f"client{number}")
        client.join("gg-explain", explain_values())
        return 'data-method="gradient"' in str(client.answer()["output"])

    with ThreadPoolExecutor(20) as clients:
        assert list(clients.map(one, range(20))) == [True] * 20


def test_the_work_of_a_client_that_vanished_ends_and_the_next_one_is_answered(server, home):
    """The first asks for minutes of work and hangs up; the second would run out of patience behind it."""
    first, second = PageClient(server, "vanishes"), PageClient(server, "stays")
    values = [0, None, -1, "one", "two", "smoothgrad", "", "targeted_map", 8, 200]
    assert first.join("gg-compare", values)[0] == 200
    stream = first.listen()
    assert next(message for message in stream if message["msg"] == "progress")
    stream.close()
    second.join("gg-explain", explain_values())
    assert 'data-method="gradient"' in str(second.answer()["output"])


def test_a_page_of_one_model_compares_nothing(home):
    words = [home / "one.safetensors", home / "set", home / "temporary"]
    done = subprocess.run(
        [sys.executable, "-c", TABS, *map(str, words)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["Attack", "Explain", "Guide"], done.stderr


def test_a_taken_port_is_one_sentence(server, home):
    port = int(server.rpartition(":")[2])
    process = started(home, port)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert err.strip() == f"gyrograd: Port {port} is in use; give another: --port {port + 1}."


def test_control_c_ends_it_and_leaves_nothing_behind(server, process, home):
    """The last test of this file: the page is gone afterwards."""
    assert list((home / "temporary").glob("gyrograd-explore-*"))
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in process.stderr.read()
    assert list((home / "temporary").glob("gyrograd-explore-*")) == []
