"""Figures, tables and one self-contained HTML page, for anything that has numbers to show."""

from sharpmax.report.html import REPORT_FILE, write_report
from sharpmax.report.page import Block, Drawn, Figure, Page, Table, Text, percent

__all__ = ["REPORT_FILE", "Block", "Drawn", "Figure", "Page", "Table", "Text", "percent", "write_report"]
