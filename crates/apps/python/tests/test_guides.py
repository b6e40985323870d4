"""The Python examples of the README and of the guides, run as they stand there.

The examples of a page share their names and a folder with a model, `model`. An example whose fence says `no-run: why` is
left out, one with `needs-s3` runs against the tests' S3 server. Recipes and examples of raw bytes have tests of their own
(test_recipes.py, test_raw_docs.py).
"""

import pathlib
import re
import sys

import numpy
import pytest
import weed

import straightway

ROOT = pathlib.Path(__file__).parents[4]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KEYS = {"AWS_ACCESS_KEY_ID": "LABACCESSKEYID", "AWS_SECRET_ACCESS_KEY": "lab-secret-access-key"}
IDENTITIES = [
    {
        "name": "lab",
        "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List"],
    },
    {"name": "anonymous", "actions": ["Write:models"]},
]
FENCE = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)


def examples(page):
    """The examples of a page: the line of each, its info string and its code."""
    text = page.read_text()
    for fence in FENCE.finditer(text):
        if not fence["code"].startswith(("# recipe: ", "# raw: ")):
            yield text.count("\n", 0, fence.start()) + 1, fence["info"].strip(), fence["code"]


def given(page):
    """What the examples of a page leave to the reader."""
    if page not in ("python", "engines"):
        return {}
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = torch.nn.Linear(4, 2)
    pathlib.Path("step-200").mkdir()
    named = {f"actor.{name}": tensor for name, tensor in model.state_dict().items()}
    straightway.save_file(named, "step-200/model.safetensors")
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "steps": 2,
        "train": lambda state: state["model"].weight.data.add_(1),
    }


def with_examples():
    return [page for page in PAGES if page.exists() and any(True for _ in examples(page))]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, in which the examples run."""
    (tmp_path / "model").mkdir()
    tensors = {"embed.weight": numpy.ones((4, 4), numpy.float32), "lm_head.weight": numpy.ones(8, numpy.float32)}
    straightway.save_file(tensors, tmp_path / "model/model.safetensors")
    monkeypatch.chdir(tmp_path)
    # An example puts this package in its place.
    monkeypatch.setitem(sys.modules, "safetensors", sys.modules.get("safetensors"))
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the model in its bucket `models`, below `llama`."""
    try:
        server = weed.Weed(tmp_path_factory.mktemp("weed"), "models", IDENTITIES)
    except weed.Missing as why:
        pytest.skip(f"no S3 server: {why}")
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    straightway.save_file({"lm_head.weight": numpy.ones((200, 8), numpy.float32)}, file)
    options = {"endpoint_url": server.url} | {name.lower(): value for name, value in KEYS.items()}
    try:
        assert server.put("llama/model.safetensors", file.read_bytes())
        while not is_served(options):
            server.wait()
        yield server
    finally:
        server.stop()


def is_served(options):
    """Whether the gateway, which starts after the rest of the server, has the model."""
    try:
        return bool(straightway.load_model("s3://models/llama", framework="np", storage_options=options))
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize("page", with_examples(), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page, place, monkeypatch, request):
    names = given(page.stem)
    for line, info, code in examples(page):
        if info.startswith("no-run: "):
            print(f"left out: {page.name}:{line}: {info.removeprefix('no-run: ')}")
            continue
        if info == "needs-s3":
            url = request.getfixturevalue("server").url
            for name, value in (KEYS | {"AWS_ENDPOINT_URL_S3": url}).items():
                monkeypatch.setenv(name, value)
        else:
            assert not info, f"{page.name}:{line}: {info} is not known"
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the guides are not here")
def test_the_quick_start_has_examples_that_run():
    quick_start = [info for _, info, _ in examples(ROOT / "docs/quick-start.md")]
    assert len([info for info in quick_start if not info.startswith("no-run")]) >= 4
