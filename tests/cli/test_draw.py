"""`draw` and `diff`: each kind of subject, picture and format; whole errors; hostile names; files that are broken."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.as_data import from_json
from flowgraph.diagrams.write.formats import ENDINGS
from tests.cli.said import text_of
from tests.cli.small_run import quietly
from tests.unit.flowgraph.diagrams.test_hostile_names import HOSTILE

Run = Callable[..., Any]

SEARCHED = ("--cluster", "2x8xh100", "--model", "policy=Qwen/Qwen3-0.6B", "--response-tokens", "mean=1k,max=4k")
PRINTED = ("text", "mmd", "md", "dot", "json", "svg")
PLANNED = {"flow", "plan", "sequence", "timeline", "memory", "placements", "search"}
PICTURES = {  # what each subject has
    "flow": PLANNED,
    "flow on a cluster": PLANNED,
    "plan of this machine": PLANNED,
    "plan of a cluster": PLANNED,
    "program": {"flow", "plan", "sequence", "timeline", "memory"},
    "run": {"flow", "plan", "sequence", "timeline", "memory", "run"},
}
KNOWN = ("flow", "plan", "sequence", "timeline", "memory", "placements", "search", "run")
SHOWN = {  # which formats a picture has, of those that are printed
    "flow": PRINTED,
    "plan": PRINTED,
    "sequence": ("text", "mmd", "md", "json", "svg"),
    "timeline": ("text", "mmd", "md", "json", "svg"),
    "memory": ("text", "mmd", "md", "json", "svg"),
    "placements": ("text", "json", "svg"),
    "search": ("text", "json", "svg"),
    "run": ("text", "json", "svg"),
}
NOT_SEARCHED = "nothing was searched\n  hint: flowgraph plan FLOW -o plan.json\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """Make one of each that can be drawn: plans, a program, a run."""
    folder = tmp_path_factory.mktemp("drawn")
    quietly(folder, "plan", "grpo", "-o", "plan.json")
    quietly(folder, "plan", "grpo", *SEARCHED, "-o", "cluster.json")
    (folder / "program.json").write_text(quietly(folder, "show", "grpo", "--stage", "lowered", "--json"))
    shutil.copytree(trained.parent, folder / "runs")
    return folder


@pytest.fixture
def subjects(made: Path, tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """Copy them into the folder of a test; give the arguments that name each."""
    for name in ("plan.json", "cluster.json", "program.json"):
        shutil.copy(made / name, tmp_path / name)
    (tmp_path / "runs").symlink_to(made / "runs")
    return {
        "flow": ("grpo",),
        "flow on a cluster": ("grpo", *SEARCHED),
        "plan of this machine": ("plan.json",),
        "plan of a cluster": ("cluster.json",),
        "program": ("program.json",),
        "run": ("runs/grpo-1",),
    }


def refused(said: Any) -> str:
    """Return the whole error: one is told, nothing is printed, and nothing is a traceback."""
    assert said.code in (1, 2), said
    assert said.out == ""
    assert "Traceback" not in said.err
    text: str = said.err
    return text


# ----------------------------------------------------------------------------------- every subject, picture, format


WHOLE = "plan of a cluster"  # drawn in each picture and each format; the others in one format of each picture


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("kind", PICTURES)
def test_each_subject_has_its_pictures_in_each_format_and_says_which_it_lacks(
    flowgraph: Run, subjects: Any, kind: str
) -> None:
    for place, picture in enumerate(KNOWN):
        if picture not in PICTURES[kind]:
            told = refused(flowgraph("draw", *subjects[kind], "--picture", picture))
            assert told.startswith(f"{subjects[kind][0]}: has no picture `{picture}`: ")
            continue
        in_turn = (SHOWN[picture][place % len(SHOWN[picture])],)
        for name in PRINTED if kind == WHOLE or picture == "run" else in_turn:
            said = flowgraph("draw", *subjects[kind], "--picture", picture, "--to", name)
            if name in SHOWN[picture]:
                _check(text_of(said), name)
            else:
                assert "cannot draw" in refused(said)


def _check(text: str, name: str) -> None:
    """Read a picture back as its format's readers do."""
    if name == "svg":
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    elif name == "json":
        assert from_json(text)
    elif name == "md":
        assert text.startswith("```mermaid\n") and text.endswith("```\n")
    else:
        assert len(text.splitlines()) > 1


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("kind", PICTURES)
def test_each_subject_is_written_in_each_format_by_the_files_ending(flowgraph: Run, subjects: Any, kind: str) -> None:
    for ending, name in ENDINGS.items():
        if kind.endswith("a cluster") and name in PRINTED:
            continue  # written as that of this machine is
        said = flowgraph("draw", *subjects[kind], "-o", f"drawn{ending}")
        if name in (*SHOWN[_first(kind)], "png", "html"):
            assert (said.code, said.out, said.err.splitlines()[-1]) == (0, "", f"drawn{ending}"), said.err
            assert len(Path(f"drawn{ending}").read_bytes()) > 100
        else:
            assert "cannot draw" in refused(said) and not Path(f"drawn{ending}").exists()


def _first(kind: str) -> str:
    return {"flow": "flow", "run": "run"}.get(kind, "plan")


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("kind", PICTURES)
def test_a_page_has_a_section_for_each_picture_and_says_which_are_not_there(
    flowgraph: Run, subjects: Any, kind: str
) -> None:
    text_of(flowgraph("draw", *subjects[kind], "-o", "all.html"))
    page = Path("all.html").read_text()
    assert page.count("<svg") >= len(PICTURES[kind])
    assert ("What is not drawn" in page) == (not {*KNOWN} - {"run"} <= PICTURES[kind])
    text_of(flowgraph("draw", *subjects[kind], "--picture", "plan", "-o", "one.html"))
    assert Path("one.html").read_text().count("<svg") < page.count("<svg")


def test_a_file_holds_what_is_printed(flowgraph: Run, subjects: Any) -> None:
    for name, ending in (("mmd", ".mmd"), ("dot", ".gv"), ("json", ".json"), ("svg", ".svg")):
        text_of(flowgraph("draw", "grpo", "-o", f"drawn{ending}"))
        printed = text_of(flowgraph("draw", "grpo", "--to", name))
        assert Path(f"drawn{ending}").read_text().rstrip("\n") == printed.rstrip("\n")


# ----------------------------------------------------------------------------------------------------------- errors


def test_errors_of_draw_are_told_whole(flowgraph: Run, subjects: Any, tmp_path: Path) -> None:
    for name, text in {"list.json": "[1]", "other.json": '{"a": 1}', "none.json": "x", "half.json": "{"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    no_json = "is not JSON, so it is not a plan, program or picture"
    half = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    known = "assumed, cluster, flow, forecast, placed, pools, schema, step, structure_hash"
    wanted = {
        ("grpo", "--picture", "flw"): "--picture: no picture `flw`\n  hint: did you mean `flow`?\n",
        ("grpo", "--picture", "x" * 9): (
            f"--picture: no picture `{'x' * 9}`\n  hint: known: {', '.join(sorted(KNOWN))}\n"
        ),
        ("grpo", "--to", "png"): "--to: cannot print `png`\n  hint: known: dot, json, md, mmd, svg, text\n",
        ("grpo", "--to", "jsn"): "--to: cannot print `jsn`\n  hint: did you mean `json`?\n",
        ("grpo", "-o", "a.xyz"): "a.xyz: cannot draw a .xyz\n  hint: did you mean `.txt`?\n",
        ("grpo", "-o", "a.svgg"): "a.svgg: cannot draw a .svgg\n  hint: did you mean `.svg`?\n",
        ("grpo", "-o", "a.svg", "--to", "svg"): (
            "--to svg: cannot be combined with -o, whose file ending sets the format\n  hint: leave it out\n"
        ),
        ("grpo", "-o", "no/such/a.svg"): "no/such/a.svg: cannot be written: No such file or directory\n",
        ("no.json",): "no.json: cannot be read: No such file or directory\n",
        ("list.json",): "list.json: Input should be an object\n",
        ("other.json",): f"other.json: a: a plan has no `a` here\n  hint: known: {known}\n",
        ("none.json",): f"none.json: {no_json}: Expecting value: line 1 column 1 (char 0)\n",
        ("half.json",): f"half.json: {no_json}: {half}\n",
        ("./empty",): "empty: is not a run folder\n",
        ("program.json", "--picture", "search"): f"program.json: has no picture `search`: {NOT_SEARCHED}",
        ("program.json", "--picture", "placements"): f"program.json: has no picture `placements`: {NOT_SEARCHED}",
        ("plan.json", "--picture", "run"): (
            "plan.json: has no picture `run`: it is not a run folder\n  hint: flowgraph draw runs/grpo-1\n"
        ),
        ("plan.json", "--cluster", "1xcpu"): (
            "plan.json: a file already defines its model, data and cluster\n  hint: flowgraph draw plan.json\n"
        ),
        ("cluster.json", "--picture", "search", "--to", "mmd"): (
            "Mermaid cannot draw a scatter of candidates\n  hint: these can: svg, png, html, json, txt\n"
        ),
        ("gropo",): "no shipped flow `gropo`\n  hint: did you mean `grpo`?\n",
    }
    found = {arguments: refused(flowgraph("draw", *arguments)).replace(f"{tmp_path}/", "") for arguments in wanted}
    assert found == wanted


def test_a_folder_with_a_flows_name_does_not_hide_the_flow(flowgraph: Run, tmp_path: Path) -> None:
    before = text_of(flowgraph("draw", "grpo"))
    (tmp_path / "grpo").mkdir()
    assert text_of(flowgraph("draw", "grpo")) == before
    assert refused(flowgraph("draw", "grpo/")) == "grpo: is not a run folder\n"


def test_a_plan_whose_flow_is_gone_is_drawn_by_its_roles(flowgraph: Run, subjects: Any) -> None:
    plan = json.loads(Path("plan.json").read_text())
    plan |= {"flow": "gone", "assumed": plan["assumed"] | {"flow": "gone"}}
    Path("gone.json").write_text(json.dumps(plan))
    assert "policy.train" in text_of(flowgraph("draw", "gone.json"))
    assert refused(flowgraph("draw", "gone.json", "--picture", "sequence")) == (
        "gone.json: has no picture `sequence`: the plan's flow is not known\n"
    )
    assert refused(flowgraph("draw", "gone.json", "--picture", "flow")) == (
        "gone.json: has no picture `flow`: flow `gone` was not found, or has changed since it was planned\n"
    )


def test_without_a_screen_show_says_where_the_page_lies(flowgraph: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    said = flowgraph("draw", "grpo", "--show")
    path, told = said.err.splitlines()
    assert (said.code, said.out) == (0, "")
    assert told == "this machine has no screen to show it on; copy the file to one that has"
    assert Path(path).read_text().startswith("<!doctype html>")
    shutil.rmtree(Path(path).parent)


def test_only_a_terminal_gets_colour_and_not_where_no_colour_is_asked_for(
    flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b" not in text_of(flowgraph("draw", "grpo"))
    monkeypatch.setattr("flowgraph.cli.viewer.sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in text_of(flowgraph("draw", "grpo"))
    assert "\x1b" not in text_of(flowgraph("draw", "grpo", "--to", "mmd"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text_of(flowgraph("draw", "grpo"))


# ------------------------------------------------------------------------------------------------------------- diff


@pytest.mark.slow(group="commands")
def test_two_flows_or_two_plans_are_compared_as_text_and_as_one_picture(flowgraph: Run, subjects: Any) -> None:
    assert "+++ gpg" in text_of(flowgraph("diff", "grpo", "gpg"))
    assert "+++ cluster.json" in text_of(flowgraph("diff", "plan.json", "cluster.json"))
    for pair in (("grpo", "gpg"), ("plan.json", "cluster.json"), ("program.json", "plan.json"), ("runs/grpo-1",) * 2):
        for name in ("text", "mmd", "dot", "json", "svg") if pair == ("plan.json", "cluster.json") else ("svg",):
            _check(text_of(flowgraph("diff", *pair, "--to", name)), name)
        text_of(flowgraph("diff", *pair, "-o", "both.html"))
        assert "<svg" in Path("both.html").read_text()


def test_what_is_the_same_has_no_difference(flowgraph: Run, subjects: Any) -> None:
    for one in ("grpo", "plan.json", "cluster.json", "runs/grpo-1"):
        said = flowgraph("diff", one, one)
        assert (said.code, said.out, said.err) == (0, "", "no difference\n")


def test_a_flow_and_a_plan_are_not_compared(flowgraph: Run, subjects: Any) -> None:
    hint = "  hint: two flows, or two plans: `flowgraph plan FLOW -o plan.json`\n"
    assert refused(flowgraph("diff", "grpo", "plan.json")) == (
        f"plan.json: is a plan, but grpo is a flow: they cannot be compared\n{hint}"
    )
    assert refused(flowgraph("diff", "plan.json", "grpo")) == (
        f"grpo: is a flow, but plan.json is a plan: they cannot be compared\n{hint}"
    )


# ---------------------------------------------------------------------------------------------------- hostile names


def hostile_plan(path: Path, name: str) -> dict[str, Any]:
    """Return a plan whose pools and machines have this name, as a person or a stranger may write it."""
    plan: dict[str, Any] = json.loads(path.read_text())
    names = {each["name"]: f"{name}{i or ''}" for i, each in enumerate(plan["pools"])}
    for each in plan["pools"]:
        each["devices"] = [[name, place] for _, place in each["devices"]]
    plan["cluster"]["nodes"] = [plan["cluster"]["nodes"][0] | {"name": name}]
    for each in (*plan["pools"], *plan["placed"], *plan["forecast"]):
        field = "name" if "devices" in each else "pool"
        if each.get(field) in names:
            each[field] = names[each[field]]
    for each in plan["step"]["tasks"]:
        each["pools"] = [names.get(pool, pool) for pool in each.get("pools", ())]
    return plan


def inert(text: str, name: str) -> None:
    """Assert that a text has no control, no direction and no half letter, and that an SVG or a page runs nothing."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b\u200e\u200f\u202a-\u202e\ud800-\udfff]", text), name
    if text.startswith("<svg"):
        tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(text).iter()}
        assert not tags & {"script", "img", "foreignObject", "image", "b"}, name


@pytest.mark.parametrize("place", range(len(HOSTILE)), ids=map(repr, HOSTILE))
def test_a_plans_hostile_names_are_only_text_in_every_format(flowgraph: Run, subjects: Any, place: int) -> None:
    """Draw each as text and in one more format; test_hostile_names draws each in all of them."""
    name, formats = HOSTILE[place], ("mmd", "dot", "json", "svg", "html")
    Path("hostile.json").write_text(json.dumps(hostile_plan(Path("plan.json"), name)))
    first = flowgraph("draw", "hostile.json", "--to", "text")
    if first.code:  # a name that no plan may have is refused, in words that reach the terminal as letters
        inert(refused(first), name)
        return
    assert clean(name)[:20] in " ".join(first.out.split()) or len(clean(name)) < 2
    inert(first.out, name)
    if (to := formats[place % len(formats)]) != "html":
        inert(text_of(flowgraph("draw", "hostile.json", "--to", to)), name)
        return
    text_of(flowgraph("draw", "hostile.json", "-o", "hostile.html"))
    page = Path("hostile.html").read_text()
    assert page.count("<script") == 1 and not re.search(r"<(img|iframe|b>|br/>)", page)


def with_metrics(run: Path, name: str) -> None:
    """Add a metric to each line of a run's metrics."""
    lines = [json.loads(line) | {name: 1.5} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("place", range(len(HOSTILE)), ids=map(repr, HOSTILE))
def test_a_runs_hostile_metrics_are_only_text_in_every_format(flowgraph: Run, made: Path, place: int) -> None:
    """Draw each in one format; test_hostile_names draws curves of each."""
    shutil.copytree(made / "runs" / "grpo-1", "run")
    with_metrics(Path("run"), HOSTILE[place])
    said = flowgraph("draw", "./run", "--to", ("text", "json", "svg")[place % 3])
    if "\ud83d" in HOSTILE[place]:  # half of a character: no run writes such a name
        assert "a string contains half of a surrogate pair" in refused(said)
        return
    inert(text_of(said), HOSTILE[place])


def test_a_flows_odd_names_are_drawn_as_they_are(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    for to in ("text", "mmd", "dot", "json", "svg"):
        text = text_of(flowgraph("draw", "odd.py", "--to", to))
        inert(text, to)
        if to == "json":
            text = text.encode().decode("unicode_escape")
        assert all(word in text for word in ("подсказки", "策略")), to


ODD = '''
"""A flow whose names are letters of other scripts, and words of Mermaid and DOT."""
from __future__ import annotations
from flowgraph import Loss, Scores, flow, node
from nodes import Policy, Prompts, Rollout, Scores, generate, gpg_advantages, logprobs, policy_gradient, update


@node
def subgraph(rollout: Rollout) -> Scores:
    """Score."""
    raise NotImplementedError


@flow
def end(подсказки: Prompts, 策略: Policy) -> Policy:
    rollout = generate(策略, подсказки, n=2)
    advantages = gpg_advantages(subgraph(rollout), rollout.group)

    def graph(digraph: Policy) -> Loss:
        return policy_gradient(logprobs(digraph, rollout), advantages, rollout.mask)

    return update(策略, graph)
'''.replace("Loss, Scores, flow", "Loss, flow")


# ----------------------------------------------------------------------------------------------------- broken files


def mutations(text: str, draw: random.Random) -> Iterator[str]:
    """Cut a file, or change one of its values."""
    while True:
        if draw.random() < 0.2:
            yield text[: draw.randrange(len(text))]
            continue
        data = json.loads(text)
        holder: Any = data
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            key = draw.choice(keys)
            if not isinstance(holder[key], dict | list) or not holder[key] or draw.random() < 0.15:
                break
            holder = holder[key]
        if draw.random() < 0.25:
            del holder[key]
        else:
            holder[key] = draw.choice(ODD_VALUES)
        yield json.dumps(data)


ODD_VALUES = (None, True, -1, 0, 1e308, 10**30, "", "x", "\x1b[31m", [], {}, [[]], {"a": 1}, float("nan"), "policy")


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["plan.json", "cluster.json", "program.json"])
def test_a_broken_file_is_drawn_or_refused_in_words(flowgraph: Run, subjects: Any, name: str, count: int) -> None:
    draw = random.Random(name)
    text, found = Path(name).read_text(), mutations(Path(name).read_text(), draw)
    assert json.loads(text)
    for _ in range(count):
        Path("broken.json").write_text(next(found))
        picture = draw.choice(("flow", "plan", "sequence", "timeline", "memory"))
        try:
            said = flowgraph("draw", "broken.json", "--picture", picture, "--to", draw.choice(("text", "svg", "json")))
        except Exception as error:
            raise AssertionError(f"{picture}: {Path('broken.json').read_text()}") from error
        assert said.code in (0, 1, 2)
        assert "Traceback" not in said.err
        inert(said.err, name)
