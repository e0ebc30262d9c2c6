"""Check the prose of README and docs: line length, paragraph length, the project's word list and spelling.

`python -m tools.prose` is part of `make test`. Vale does the same and more, but its package on PyPI downloads a program
from GitHub when it first runs, and our checks run without a network.
"""
