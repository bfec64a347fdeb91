"""The figures of results/reading.md are looked up in the committed results."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# What may stand in the text as it is: whole phrases, each of which has to be there.
LITERAL = {
    "settings": (
        "Assume 0.0001 to 0.1 where 0.01 is real",
        "grows unseen from 0.01 to 0.1",
        "of that constant at 0.1",
        "a variance of 0.01",
        "and at 0.1 both",
        "a fixed rate of 5 %",
        "95 % intervals",
    ),
    "targets set in advance": ("at least 0.35",),
    "versions": (
        "committed with 0.1",
        "default of 0.2, on the real drive and on CIFAR-10 of 0.3",
        "all made with 0.2",
        "default of 0.2 had an NLL of -0.85 and a rank of 0.30",
        "default of 0.2 had 0.249 and 3.0 %",
        "since 0.3 `p.std` of a probability",
    ),
    "from runs that no committed file has": (
        "masks at the same rate give -0.61 to -0.84",
        "NLL of the tuning images (0.296 in place of 0.301)",
        "by 0.003 ± 0.005 on the first 500",
        "without a noise the default gives the same 0.249 and 3.0 % as before",
    ),
}


def script():
    path = ROOT / "docs" / "result_figures.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(method, seed, night, fog=1.0, **others):
    scores = {"night": {"nll": night, "coverage": 0.5 + seed / 4}, "fog": {"nll": fog, "rmse": 0.2}}
    return {"method": method, "seed": seed, "scores": scores, **others}


def looked_up(lookup, *results):
    found = map(script().figures, results or [steering(), *others()])
    return script().figure(lookup, {key: value for each in found for key, value in each.items()})


def steering():
    plain = {"whole test drive": {"rmse": 0.1077, "eva": 0.733}}
    lines = [line("gradients", 0, -1.0), line("gradients", 1, -2.0), line("constant", 1, -1.5)]
    lines += [line("constant", 0, 0.0), line("ensemble", 0, 1.0, 2.0), line("ours", 0, None)]
    return {"name": "steering", "plain": plain, "lines": lines}


def others():
    real = {"method": "ours", "seed": 0, "scores": {"0.01": {"nll": -1.0}, "0.1": {"nll": 0.5}}}
    assumed = {"method": "ours", "seed": 0, "assumed": 1e-4, "scores": {"0.01": {"nll": -0.25}}}
    yield {"name": "sensitivity", "real": [real], "assumed": [assumed]}
    ours = {"method": "ours", "seed": 0, "points": [{"samples": 20, "seconds": 0.0436}]}
    yield {"name": "runtime", "curves": [ours]}
    wine = {"data": "wine-red", "split": 3, "method": "ours", "scores": {"nll": 1.0}}
    yield {"name": "uci-real", "lines": [wine]}
    scores = {"all": {"nll": 3.05}, "kinds": {"steady": {"nll": 2.0}, "hidden": {"nll": 4.0}}}
    dense = [{"method": "diagonal", "part": "data", "off": 52.01}]
    ours = {"method": "ours", "seed": 0, "scores": scores}
    yield {"name": "motion", "lines": [ours], "dense": dense}
    mlp = {"policy": "mlp", "seed": 0, "rmse": {"fast circle": 0.137}, "share": {}}
    yield {"name": "quadrotor", "lines": [mlp]}
    flight = {"case": "flight", "method": "gradients", "rank": 1.0, "shares": {"velocity": 0.77}}
    yield {"name": "raptor", "lines": [flight]}


@pytest.mark.parametrize(
    ("lookup", "text"),
    {
        "steering gradients night nll": "-1.50",
        "steering gradients night nll ±": "-1.50 ± 0.71",
        "steering ensemble night nll ±": "1.00",
        "steering gradients night nll seed=1": "-2.00",
        "steering gradients night coverage %": "62 %",
        "steering gradients,ensemble night coverage % .1": "62.5 and 50.0 %",
        "steering gradients,constant,ensemble night nll": "-1.50, -0.75 and 1.00",
        "steering gradients,ensemble night,fog nll": "-1.50, 1.00, 1.00 and 2.00",
        "steering ensemble,gradients night nll range": "-1.50 to 1.00",
        "steering ensemble,gradients night nll span": "2.50",
        "steering gradients night nll lowest": "-2.00",
        "steering gradients-constant night nll": "-0.75",
        "steering gradients-constant night nll below": "2",
        "steering gradients night-fog nll": "-2.50",
        "steering gradients/constant night nll %": "200 %",
        "steering plain rmse": "0.108",
        "steering\n  plain eva %": "73 %",
        "steering gradients fog known_rmse": "0.19",
        "sensitivity ours real 0.01,0.1 log_likelihood to": "1.00 to -0.50",
        "sensitivity ours assumed 0.0001 log_likelihood": "0.25",
        "runtime ours 20 ms .0": "44",
        "uci-real ours wine_red nll": "1.00",
        "motion ours nll": "3.05",
        "motion ours hidden-steady nll": "2.00",
        "motion diagonal data dense off .0": "52",
        "quadrotor mlp rmse fast_circle .3": "0.137",
        "raptor gradients flight shares velocity %": "77 %",
    }.items(),
)
def test_lookup_is_what_the_results_say(lookup, text):
    assert looked_up(lookup) == text


@pytest.mark.parametrize(
    ("lookup", "sentence"),
    {
        "steerin gradients nll": "of files there is only `steering`, `sensitivity`, `runtime`",
        "steering gradient night nll": "after `steering` there is only `plain`, `gradients`, `con",
        "steering gradients night,fgo nll": "`steering gradients` there is only `night`, `fog`.",
        "steering gradients night": "`steering gradients night` there is only `nll`, `log_like",
        "steering plain rmse night": "after `steering plain rmse` there is only the end.",
        "steering gradients night nll seed=7": "night nll` there is only `seed=0`, `seed=1`.",
        "steering gradients-ensemble night nll": "`gradients-ensemble` have other seeds",
        "steering ours night nll": "`steering ours night nll` is not finite in every seed.",
    }.items(),
)
def test_unknown_lookup_says_what_there_is(lookup, sentence):
    with pytest.raises(ValueError) as caught:
        looked_up(lookup)
    assert str(caught.value).startswith(f"`{{{lookup}}}` stands for no figure: ")
    assert sentence in str(caught.value)


def test_the_order_of_lines_does_not_matter():
    lines = [line("ours", 0, 1.0), line("ours", 0, 3.0, added=1), line("ours", 0, 2.0, added=0)]
    for order in (lines, lines[::-1]):
        assert looked_up("some ours night nll", {"name": "some", "lines": order}) == "3.00"


def test_a_difference_that_rounds_to_zero_has_no_sign():
    results = {"name": "steering", "lines": [line("a", 0, 1.0), line("b", 0, 1.001)]}
    assert looked_up("steering a-b night nll", results) == "0.00"


def test_items_are_filled_and_wrapped():
    text = "## Title\n\n- NLL is {steering\n  gradients night nll}.\n- " + "word " * 30 + "\n"
    found = script().filled(text, script().figures(steering()))
    assert found.startswith("## Title\n\n- NLL is -1.50.\n- word")
    assert max(map(len, found.split("\n"))) <= 100


def test_reading_has_no_figure_of_its_own():
    text = re.sub(r"\{[^{}]*\}", "", (ROOT / "results/reading.md").read_text(encoding="utf-8"))
    text = " ".join(text.split())
    for phrase in (phrase for phrases in LITERAL.values() for phrase in phrases):
        assert phrase in text
        text = text.replace(phrase, "")
    assert re.findall(r"\S*(?:\d+\.\d+|\d+ (?:%|ms\b))", text) == []
