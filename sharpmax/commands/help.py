"""Show the help of a command: one sentence, its options in groups with units and defaults, and examples to copy."""

import argparse
from typing import Any, NoReturn

EXIT_USER_ERROR = 2
RUN = "run"
"""The group of options that say where a run is kept, on what it runs and what it shows."""


class Help(argparse.HelpFormatter):
    """Help in which every option and command stands beside what it does, with its default."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def add_argument(self, action: argparse.Action) -> None:
        """Measure an argument; argparse forgets by how much commands are indented."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap a sentence; keep examples as they were typed."""
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(f"{indent}{line}" for line in text.splitlines())

    def _get_help_string(self, action: argparse.Action) -> str:
        default, said = action.default, action.help or ""
        if default is None or default is False or default in ((), argparse.SUPPRESS):
            return said
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        return f"{said} (default: {shown})"


class Once(argparse._StoreAction):
    """An option that takes one word after the other, once: argparse would keep the last list alone."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Keep the values, or refuse a second list."""
        if isinstance(values, list) and getattr(namespace, self.dest, self.default) is not self.default:
            raise argparse.ArgumentError(self, "given twice, and only the last would count: name all after one")
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Help, **options)
        self.register("action", None, Once)
        self.register("action", "store", Once)

    def format_help(self) -> str:
        """Return the help, with what every command shares at its end."""
        self._action_groups.sort(key=lambda one: one.title == RUN)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print one line that says what is wrong and where the help is, and exit."""
        self.exit(EXIT_USER_ERROR, f"sharpmax: error: {' '.join(message.split())} (see {self.prog} --help)\n")


def describe(parser: argparse.ArgumentParser, sentence: str, *examples: str) -> None:
    """Give a command its sentence and its examples."""
    parser.description = sentence
    parser.epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])


def group(parser: argparse.ArgumentParser, title: str) -> Any:
    """Return the group of options with this title, made when it is first asked for."""
    for known in parser._action_groups:
        if known.title == title:
            return known
    return parser.add_argument_group(title)
