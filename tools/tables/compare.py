"""Tables of the comparison of mechanisms: every mechanism on every task, at trained sizes and at the largest one."""

from typing import Any

from tools.tables.records import RESULTS, markdown, percent, read, table

PLAIN = "softmax"
SURE = 0.05  # p-value by Holm's method below which a difference gets a star
NONE = "Not run yet: it needs a GPU."

ByTask = dict[str, dict[str, Any]]


def runs() -> list[tuple[str, ByTask]]:
    """Return the committed comparisons: each model with its tasks and their arms."""
    found: list[tuple[str, ByTask]] = []
    for file in sorted((RESULTS / "compare").glob("*/metrics.json")):
        tasks = read("compare", file.parent.name, "metrics.json")["summary"]["tasks"]
        models = sorted({model for by_model in tasks.values() for model in by_model})
        found += [(m, {task: by_model[m] for task, by_model in tasks.items() if m in by_model}) for m in models]
    return found


def rows_at(by_task: ByTask, index: int) -> list[list[str]]:
    """Return a row per mechanism, softmax first, the others by their mean: accuracy at a size, by its index, per task.

    Mechanisms that miss tasks come last; an unmeasured cell is empty.
    """
    arms = {arm for by_arm in by_task.values() for arm in by_arm}

    def order(arm: str) -> tuple[bool, int, float]:
        found = [by_arm[arm] for by_arm in by_task.values() if arm in by_arm]
        accuracy = sum(_at(one, index)["mean"] for one in found) / len(found)
        return arm != PLAIN, len(by_task) - len(found), -accuracy

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
        f"{model} parameters:\n\n"
        + markdown(
            ["", *(f"{task}, {_size(by_arm, index)}" for task, by_arm in by_task.items())], rows_at(by_task, index)
        )
        for model, by_task in runs()
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
    """Return the milliseconds of a training step by mechanism, of the first task that has each."""
    parts = []
    for model, by_task in runs():
        cost: dict[str, float] = {}
        for by_arm in by_task.values():
            for arm, found in by_arm.items():
                if found["milliseconds"] is not None:
                    cost.setdefault(arm, found["milliseconds"])
        rows = [[arm, f"{of:.1f}"] for arm, of in sorted(cost.items(), key=lambda item: item[1])]
        parts.append(markdown([f"{model} parameters", "ms per step"], rows))
    return "\n\n".join(parts) or NONE
