"""The page of the laws."""

from typing import Any

from sharpmax.report import Page, Text
from sharpmax.runs.run_folder import RunFolder


def tell(metrics: dict[str, Any], folder: RunFolder) -> Page:
    """Save the page."""
    page = Page("The laws of dispersion", "", [Text("")])
    page.save(folder.path)
    return page
