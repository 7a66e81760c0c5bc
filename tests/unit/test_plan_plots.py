"""What is drawn is what was computed: read back from the axes, and from the files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from ckptflow.errors import ConfigError
from ckptflow.plan import plots
from ckptflow.plan.tune import Answer, Request, tune_site, workload_of
from ckptflow.policy.multilevel.exact import efficiency
from ckptflow.policy.multilevel.surrogate import shipped
from ckptflow.policy.multilevel.system import Pattern
from ckptflow.site import Site

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
drawn = pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")


def answered(*names: str) -> Answer:
    tiers = [
        {
            "kind": "posix",
            "name": name,
            "path": f"/{name}",
            "level": {"nvme": 1, "pfs": 3}[name],
        }
        for name in names
    ]
    failures = {"process_mtbf": "2000d", "system_mtbf": "1d", "source": "made up"}
    site = Site.model_validate({"name": "there", "tiers": tiers, "failures": failures})
    load = workload_of(site, state_bytes=20e12, nodes=512, writers_per_node=8)
    request = Request(workload=load)
    return tune_site(site, request, surrogate=shipped(), refine=False)


@pytest.fixture(scope="module")
def two() -> Answer:
    return answered("nvme", "pfs")


def test_the_surface_is_that_of_the_exact_evaluation(two: Answer) -> None:
    system, best = two.tuning.system, two.tuning.pattern
    found = plots.surface(system, best)
    assert found.level == "pfs"
    assert found.efficiency.shape == (len(found.count), len(found.interval_s))
    assert best.every[-1] in found.count
    assert found.interval_s[len(found.interval_s) // 2] == pytest.approx(best.interval_s)
    for row, column in ((0, 30), (-1, 7), (len(found.count) // 2, 20)):
        pattern = Pattern(float(found.interval_s[column]), (1, int(found.count[row])))
        assert found.efficiency[row, column] == efficiency(system, pattern)


def test_time_adds_up_and_ours_is_the_best(two: Answer) -> None:
    system = two.tuning.system
    times = {
        name: plots.where_time_goes(system, one) for name, one in plots.patterns(two).items()
    }
    assert list(times) == ["ours", "first order", "pfs only"]
    assert all(sum(parts.values()) == pytest.approx(1) for parts in times.values())
    assert times["ours"]["useful"] == two.tuning.efficiency
    assert max(times, key=lambda name: times[name]["useful"]) == "ours"


@drawn
def test_the_drawn_surface_has_the_numbers(two: Answer) -> None:
    figure = plots.efficiency_figure(two)
    axes = figure.axes[0]
    found = plots.surface(two.tuning.system, two.tuning.pattern)
    (mesh,) = axes.collections
    shown = np.ma.filled(mesh.get_array(), 0.0).reshape(found.efficiency.shape)
    np.testing.assert_array_equal(shown, np.maximum(found.efficiency, 0))
    (star,) = axes.lines
    assert star.get_xydata().tolist() == [
        [two.tuning.pattern.interval_s, two.tuning.pattern.every[-1]]
    ]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@drawn
def test_with_one_level_the_interval_alone_is_drawn() -> None:
    answer = answered("pfs")
    axes = plots.efficiency_figure(answer).axes[0]
    line, star = axes.lines
    found = plots.surface(answer.tuning.system, answer.tuning.pattern)
    np.testing.assert_array_equal(line.get_ydata(), found.efficiency[0])
    np.testing.assert_array_equal(line.get_xdata(), found.interval_s)
    assert star.get_ydata() == [answer.tuning.efficiency]
    assert list(plots.patterns(answer)) == ["ours", "first order", "pfs only"]


@drawn
def test_the_drawn_bars_have_the_numbers(two: Answer) -> None:
    axes = plots.time_figure(two).axes[0]
    system = two.tuning.system
    for place, pattern in enumerate(plots.patterns(two).values()):
        parts = plots.where_time_goes(system, pattern)
        heights = [bars[place].get_height() for bars in axes.containers]
        assert heights == pytest.approx(list(parts.values()))
        tops = np.cumsum(heights)
        bottoms = [bars[place].get_y() for bars in axes.containers]
        assert bottoms == pytest.approx([0, *tops[:-1]])
    names = [bars.get_label() for bars in axes.containers]
    assert names[:3] == ["useful", "blocked", "interference"]


@drawn
def test_files_are_drawings(two: Answer, tmp_path: Path) -> None:
    from matplotlib.image import imread

    files = plots.plot(two, tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["efficiency.png", "time.png"]
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG\r\n")
        assert len(np.unique(imread(file)[:, :, 1])) > 50  # Shades of green.
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match=r"Cannot draw into .*file"):
        plots.plot(two, blocked)


def test_without_matplotlib_it_says_what_to_install(
    two: Answer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'ckptflow\[plan\]'"):
        plots.plot(two, tmp_path / "new")
    assert not (tmp_path / "new").exists()
