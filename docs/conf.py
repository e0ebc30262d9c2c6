"""Settings of the documentation site: Sphinx, furo, MyST. `make docs` builds it; it needs no network."""

import importlib

import sharpmax

project = "sharpmax"
author = copyright = "The sharpmax authors"
release = version = sharpmax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

# Pages are Markdown that GitHub shows as well; a link to a heading is `page.md#the-heading`.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Docstrings write `name` as Markdown does.
default_role = "code"
autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"sharpmax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1b5e8a", "color-brand-content": "#1b5e8a"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f5", "color-brand-content": "#7cc4f5"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"

# Names of `sharpmax` itself are made when first asked for; autodoc looks them up in the module.
for _name in sharpmax.__all__:
    setattr(sharpmax, _name, getattr(importlib.import_module("sharpmax.core.api"), _name))
