"""Tables of the comparison of mechanisms: every mechanism on every task, at trained sizes and at the largest one."""

from typing import Any, NamedTuple

from tools.tables.records import RESULTS, markdown, percent, read, table

PLAIN = "softmax"
SURE = 0.05  # p-value by Holm's method below which a difference gets a star
NONE = "Not run yet: it needs a GPU."

ByTask = dict[str, dict[str, Any]]


class Run(NamedTuple):
    """One model of a committed comparison: how it was trained, where, and its tasks with their arms."""

    how: str
    device: str
    by_task: ByTask


def runs() -> list[Run]:
    """Return the committed comparisons, a model each."""
    found = []
    for file in sorted((RESULTS / "compare").glob("*/metrics.json")):
        record = read("compare", file.parent.name, "metrics.json")
        tasks, config, device = record["summary"]["tasks"], record["config"], record["device"]
        recipe = f"{config['seeds']} seeds, {config['recipe']['steps']:,} steps of {config['recipe']['batch']}"
        for model in sorted({model for by_model in tasks.values() for model in by_model}):
            by_task = {task: by_model[model] for task, by_model in tasks.items() if model in by_model}
            found.append(Run(f"{model} parameters, {recipe} sequences, {device}", device, by_task))
    return found


def rows_at(by_task: ByTask, index: int) -> list[list[str]]:
    """Return a row per mechanism, softmax first, the others by their mean: accuracy at a size, by its index, per task.

    Mechanisms that miss tasks come last; an unmeasured cell is empty.
    """
    arms = {arm for by_arm in by_task.values() for arm in by_arm}

    def order(arm: str) -> tuple[bool, int, float, str]:
        found = [by_arm[arm] for by_arm in by_task.values() if arm in by_arm]
        accuracy = sum(_at(one, index)["mean"] for one in found) / len(found)
        return arm != PLAIN, len(by_task) - len(found), -accuracy, arm

    return [
        [arm, *(_cell(_at(by_arm[arm], index)) if arm in by_arm else "" for by_arm in by_task.values())]
        for arm in sorted(arms, key=order)
    ]


def _at(found: dict[str, Any], index: int) -> dict[str, Any]:
    one: dict[str, Any] = list(found["sizes"].values())[index]
    return one


def _cell(one: dict[str, Any]) -> str:
    if one.get("difference_interval") is None:
        return percent(one["mean"])
    low, high = (100 * end for end in one["difference_interval"])
    star = "*" if one["p_value"] is not None and one["p_value"] < SURE else ""
    return f"{percent(one['mean'])} ({low:+.0f} to {high:+.0f}){star}"


def _size(by_arm: dict[str, Any], index: int) -> str:
    return f"{int(list(next(iter(by_arm.values()))['sizes'])[index]):,}"


def _tables(index: int) -> str:
    parts = [
        f"{run.how}:\n\n"
        + markdown(
            ["", *(f"{task}, {_size(by_arm, index)}" for task, by_arm in run.by_task.items())],
            rows_at(run.by_task, index),
        )
        for run in runs()
    ]
    return "\n\n".join(parts) or NONE


@table
def compare_largest() -> str:
    """Return every mechanism's accuracy at the largest size of each task."""
    return _tables(-1)


@table
def compare_trained() -> str:
    """Return the same at the largest trained size: what a mechanism costs there."""
    return _tables(0)


@table
def compare_cost() -> str:
    """Return the milliseconds of a training step by mechanism on a GPU, of the first task that has each."""
    parts = []
    for run in (run for run in runs() if "NVIDIA" in run.device):
        cost: dict[str, float] = {}
        for by_arm in run.by_task.values():
            for arm, found in by_arm.items():
                if found["milliseconds"] is not None:
                    cost.setdefault(arm, found["milliseconds"])
        rows = [[arm, f"{of:.1f}"] for arm, of in sorted(cost.items(), key=lambda item: item[1])]
        parts.append(markdown([run.how, "ms per step"], rows))
    return "\n\n".join(parts) or NONE
