"""The text for Prometheus: valid by its grammar, complete, and cumulative."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metrics.throttled import TOTAL, make
from torch_dataloader_utils import combine
from torch_dataloader_utils.metrics.prometheus import prometheus_text
from torch_dataloader_utils.metrics.totals import Totals, metrics

# Text format 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_VALUE = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf|NaN)"
_HELP = re.compile(rf"# HELP ({_NAME}) (.+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge)")
_SAMPLE = re.compile(rf"({_NAME})\{{({_LABEL}(?:,{_LABEL})*)\}} ({_VALUE})")


def parsed(text: str) -> dict[tuple[str, str], float]:
    """The samples by name and labels, after checks of the grammar: each metric is one group with its help and type."""
    assert text.endswith("\n")
    samples: dict[tuple[str, str], float] = {}
    seen: list[str] = []
    lines = text.splitlines()
    while lines:
        name = _matched(_HELP, lines.pop(0))[1]
        assert name not in seen
        seen.append(name)
        typed = _matched(_TYPE, lines.pop(0))
        assert typed[1] == name
        assert (typed[2] == "counter") == name.endswith("_total")
        assert lines
        while lines and not lines[0].startswith("#"):
            sample = _matched(_SAMPLE, lines.pop(0))
            assert sample[1] == name
            assert (name, sample[2]) not in samples
            samples[name, sample[2]] = float(sample[3])
    return samples


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    match = pattern.fullmatch(line)
    assert match is not None, line
    return match


def test_a_scrape_is_valid_complete_and_resets_nothing(folder: Path) -> None:
    _, first = make(folder)
    dataset = combine([first, first], batch_size=50, num_ranks=2, rank=1, num_workers=2).dataset
    for _ in range(2):
        list(dataset)
        text = dataset.metrics_text(detail=True)
    samples = parsed(text)
    assert len(samples) == len(dataset.metrics(detail=True, total=True).keys() - {"batch_s"})
    assert "tdu_batch" not in text  # it may fall
    assert samples["tdu_rows_total", 'rank="1"'] == 2 * TOTAL
    assert samples["tdu_source_rows_total", 'rank="1",source="0"'] > 0
    assert samples["tdu_source_laps_total", 'rank="1",source="0"'] == pytest.approx(2, abs=0.1)
    assert samples["tdu_worker_seconds_total", 'rank="1",worker="1",stage="decode"'] > 0
    assert samples["tdu_stage_seconds_total", 'rank="1",stage="list"'] == dataset._source.listed
    assert dataset.metrics()["rows"] == 2 * TOTAL
    assert parsed(dataset.metrics_text()).keys() < samples.keys()
    if importlib.util.find_spec("prometheus_client"):
        from prometheus_client.parser import text_string_to_metric_families

        assert sum(len(family.samples) for family in text_string_to_metric_families(text)) == len(samples)


@given(st.floats(0, 1e300), st.integers(0, 5000))
def test_any_value_is_written_so_that_it_reads_the_same(value: float, rank: int) -> None:
    text = prometheus_text(metrics(Totals(waited=value, rows=rank), detail=True), rank)
    samples = parsed(text)
    assert samples["tdu_data_wait_seconds_total", f'rank="{rank}"'] == value
    assert samples["tdu_rows_total", f'rank="{rank}"'] == rank


def test_names_that_have_no_bytes_are_escaped() -> None:
    text = prometheus_text({"rows/a\udcff": 1.0}, 0)
    assert 'source="a\\udcff"' in text
    assert text.encode()


def test_other_keys_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'loss' is not a metric of a loader: expected the dict that loader.metrics"):
        prometheus_text({"loss": 1.0}, 0)
