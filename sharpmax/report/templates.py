"""Render a page from a template of this folder; everything that comes from data is escaped."""

from pathlib import Path
from typing import Any

from sharpmax.extras import extra

with extra("report"):
    import jinja2


def render(template: str, **values: Any) -> str:
    """Return the page that a template makes of the values; a value that is missing raises."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
