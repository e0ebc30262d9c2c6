"""The reference of the command line, from the parser itself: every command, its options, defaults and examples."""

import argparse

from sharpmax.commands.help import RUN, Help
from sharpmax.commands.options import parser
from tools.tables.records import table


@table
def commands() -> str:
    """Return every command as a section."""
    return "\n" + "\n\n".join(_section(one) for one in _leaves(parser())) + "\n"


def _leaves(of: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the commands in the order of the help, those with commands of their own included."""
    found = []
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                found += [one, *_leaves(one)]
    return found


def _section(command: argparse.ArgumentParser) -> str:
    level = "##" if command.prog.count(" ") == 1 else "###"
    parts = [f"{level} {command.prog}", command.description or "", f"```text\n{command.epilog}\n```"]
    shared = command.prog.startswith("sharpmax reproduce ")
    for group in command._action_groups:
        if shared and group.title == RUN:
            continue
        rows = [_row(command, action) for action in group._group_actions if not _is_common(action)]
        if rows:
            title = {"positional arguments": "arguments"}.get(group.title or "", group.title)
            parts.append("\n".join([f"| {title} | |", "| --- | --- |", *rows]))
    return "\n\n".join([*parts, *["The options of `sharpmax reproduce` work here too."] * shared])


def _is_common(action: argparse.Action) -> bool:
    return isinstance(action, argparse._HelpAction | argparse._SubParsersAction)


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = Help(command.prog)
    named = ", ".join(action.option_strings) or action.dest
    shown = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    takes = f" {shown}" if action.option_strings and action.nargs != 0 else ""
    choices = "" if action.choices is None or action.metavar else f" one of {', '.join(map(str, action.choices))}:"
    takes = takes if action.choices is None else f" {action.dest.upper()}"
    said = formatter._get_help_string(action).replace("|", "\\|")
    return f"| `{named}{takes}` |{choices} {said} |"
