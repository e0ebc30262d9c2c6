"""Figures, tables and one self-contained HTML page, for anything that has numbers to show."""

from sharpmax.report.html import write_report
from sharpmax.report.page import Figure, Page, Table, Text

__all__ = ["Figure", "Page", "Table", "Text", "write_report"]
