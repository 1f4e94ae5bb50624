"""Writes docs/demo/plan.html, the plan page of a dataset like the flights of the demo, and its pictures.

python scripts/draw_plan_page.py             # write the page
python scripts/draw_plan_page.py --check     # exit with 1 if the page differs
python scripts/draw_plan_page.py --pictures  # write the page and its pictures (playwright, pillow and a Chromium)

The rows are counted, not read: what the flights hold does not matter here.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pictures import IMAGES, ROOT

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.plan_page.call import target_values
from torch_dataloader_utils.plan_page.data import page_data
from torch_dataloader_utils.plan_page.page import page_of

PAGE = ROOT / "docs" / "demo" / "plan.html"
FOLDER = "examples/flights/data/files"  # of the demo
MONTHS = (27004, 24951, 28834, 28330, 28796, 28243, 29425, 29327, 27574, 28889, 27268, 28135)  # rows
GROUP_ROWS, ROW_BYTES = 4096, 45  # of the demo's files
OPTIONS = {"batch_size": 512, "shuffle": True, "shuffle_buffer_size": 16384, "split_rows": GROUP_ROWS}
# Name, width, colour scheme and fragment.
PICTURES = (
    ("plan_page_light", 1400, "light", "#num_ranks=4&num_workers=2"),
    ("plan_page_dark", 1400, "dark", "#num_ranks=8&sharding=rotate&even=drop"),
    ("plan_page_phone", 390, "light", "#num_ranks=4&even=pad"),
)
HEIGHT = {1400: 1180, 390: 844}


def write_flights(folder: Path) -> None:
    for month, rows in enumerate(MONTHS, 1):
        place = folder / f"month={month}"
        place.mkdir(parents=True)
        table = pa.table({"distance": pa.nulls(rows, pa.float64())})
        pq.write_table(table, place / "flights.parquet", row_group_size=GROUP_ROWS)


def page() -> str:
    with tempfile.TemporaryDirectory() as temporary:
        write_flights(Path(temporary))
        _, dataset = StructuredDataset.create_dataloader(temporary, num_workers=2, num_ranks=4, rank=0, **OPTIONS)
        passes = passes_of(dataset)
        data = page_data("StructuredDataset", passes.source, passes.options, passes.planner, epoch=0)
        return page_of(as_of_the_demo(data, temporary))


def as_of_the_demo(data: dict[str, Any], folder: str) -> dict[str, Any]:
    """The data with the demo's paths, and sizes that do not depend on the version of pyarrow."""
    data["files"] = [[path.replace(folder, FOLDER), rows] for path, rows in data["files"]]
    data["file_bytes"] = [rows * ROW_BYTES for _, rows in data["files"]]
    data["call"]["target"] = target_values(FOLDER)
    data["call"]["explicit_ranks"] = False
    return data


def draw_pictures() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("google-chrome")  # else the one that Playwright has downloaded
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for name, width, scheme, fragment in PICTURES:
            view = browser.new_page(viewport={"width": width, "height": HEIGHT[width]}, color_scheme=scheme)
            view.goto(f"{PAGE.as_uri()}{fragment}")
            view.wait_for_selector("#rotation td")
            if width < 500:  # below the options
                view.evaluate("scrollTo({top: document.getElementById('map').offsetTop - 260, behavior: 'instant'})")
            image = Image.open(io.BytesIO(view.screenshot())).convert("RGB").quantize(96)
            image.save(IMAGES / f"{name}.png", optimize=True)
            print((IMAGES / f"{name}.png").relative_to(ROOT))
        browser.close()


html = page()
if "--check" in sys.argv:
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != html:
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run python scripts/draw_plan_page.py")
else:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(html, encoding="utf-8")
    print(PAGE.relative_to(ROOT))
if "--pictures" in sys.argv:
    draw_pictures()
