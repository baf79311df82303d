"""Pressure of a machine, and starts that are held back by it."""

from pathlib import Path

import pytest

from rollbook.errors import CapacityBusy
from rollbook.sandboxes.pressure import read_pressure, require_calm


def test_the_kernel_counts_are_read(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    for name, value in (("cpu", "89.10"), ("memory", "0.00"), ("io", "3.25")):
        text = f"some avg10={value} avg60=85.60 avg300=71.52 total=8502473063\nfull avg10=7.00 avg60=0.00 total=0\n"
        (tmp_path / "pressure" / name).write_text(text)
    assert read_pressure(tmp_path) == {"cpu": 89.1, "memory": 0.0, "io": 3.25}


def test_an_older_kernel_has_its_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    (tmp_path / "loadavg").write_text("5.00 3.10 2.20 3/456 789\n")
    assert read_pressure(tmp_path) == {"load": 125.0}


def test_this_machine_has_some() -> None:
    assert all(value >= 0 for value in read_pressure().values())


def test_a_start_is_held_back_above_the_limit_only() -> None:
    require_calm(None, {"cpu": 100.0})
    require_calm(80.0, {"cpu": 80.0, "io": 1.0})
    with pytest.raises(CapacityBusy, match=r"above 80 \(ROLLBOOK_MAX_PRESSURE\): cpu 81") as error:
        require_calm(80.0, {"cpu": 81.0, "io": 1.0})
    assert error.value.retry_after_s == 15
