"""What a `--model` text names, without torch."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from flowgraph.errors import ModelError
from flowgraph.models import ModelSource, TinySize, built_in_models, resolve
from tests.looped import looped

CACHE = Path("cache")


def test_tiny_takes_options() -> None:
    assert resolve("tiny", cache=CACHE) == ModelSource("tiny", "tiny", size=TinySize())
    assert resolve("tiny:hidden=32,layers=1", cache=CACHE).size == TinySize(hidden=32, layers=1)


def test_the_packaged_model_lies_in_the_cache() -> None:
    assert resolve("smollm2-135m", cache=CACHE).path == CACHE / "smollm2-135m"


def test_a_folder_that_exists_comes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name", cache=CACHE).kind == "hub"
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve("org/name", cache=CACHE) == ModelSource("org/name", "folder", Path("org/name"))


@looped(
    "text, message",
    [
        (
            "tinny",
            "no model `tinny`\n  hint: did you mean `tiny`? Or a folder such as ./tinny, or a hub id such as org/name",
        ),
        (
            "",
            "no model ``\n  hint: known: smollm2-135m, tiny. Or a folder such as ./model, or a hub id such as org/name",
        ),
        ("./gone", "./gone: no such folder"),
        ("/gone/a/b", "/gone/a/b: no such folder"),
        (
            "tiny:hiden=3",
            "tiny:hiden=3: `tiny` has no option `hiden`\n  hint: did you mean `hidden`?",
        ),
        ("tiny:layers=0", "tiny:layers=0: layers=0 is not an integer from 1 to 32"),
        ("tiny:layers=two", "tiny:layers=two: layers=two is not an integer from 1 to 32"),
        (
            "tiny:hidden=36,heads=4",
            (
                "tiny:hidden=36,heads=4: hidden=36 is not a multiple of twice heads=4\n"
                "  hint: a head has an even number of units"
            ),
        ),
    ],
)
def test_a_text_that_names_no_model_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(text, cache=CACHE)
    assert str(caught.value) == message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_a_path_to_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelError) as caught:
        resolve(str(file), cache=CACHE)
    assert str(caught.value) == f"{file}: is a file\n  hint: name the folder that holds config.json and the weights"


@pytest.mark.parametrize("text", ["a" * 5000, "a/" * 3000, "a\0b", "~nobody-here/x"])
def test_odd_texts_are_errors_of_ours(text: str) -> None:
    with pytest.raises(ModelError):
        resolve(text, cache=CACHE)


def test_built_in_models_suggest_settings_and_others_none(tmp_path: Path) -> None:
    assert resolve("tiny:layers=1", cache=CACHE).suggest() == {"update.lr": 1e-3, "run.steps": 300}
    assert resolve("smollm2-135m", cache=CACHE).suggest()["update.lr"] == 4e-5
    assert resolve(str(tmp_path), cache=CACHE).suggest() == {}


def test_known_models_say_their_size_and_whether_they_are_ready(tmp_path: Path) -> None:
    assert [(m.name, m.kind, m.parameters, m.ready) for m in built_in_models(tmp_path)] == [
        ("tiny", "tiny", 109376, True),
        ("smollm2-135m", "package", 134515008, False),
    ]
    (tmp_path / "smollm2-135m").mkdir()
    assert built_in_models(tmp_path)[1].ready


def test_naming_and_sizing_models_loads_no_heavy_library() -> None:
    code = (
        "import sys; from pathlib import Path; import flowgraph.models as m;"
        "[m.shape(m.resolve(n, cache=Path('x'))) for n in ('tiny', 'smollm2-135m')]; m.built_in_models(Path('x'));"
        "print([n for n in ('torch', 'transformers', 'huggingface_hub', 'numpy', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
