"""The tasks with a size dial, by name."""

from sharpmax.tasks.copying import Copy
from sharpmax.tasks.flip_flop import FlipFlop
from sharpmax.tasks.needle import Needle
from sharpmax.tasks.numbers import Maximum, Sort
from sharpmax.tasks.recall import Recall
from sharpmax.tasks.share import Share
from sharpmax.tasks.sized import Task

TASKS: dict[str, Task] = {
    task.name: task for task in (Recall(), Maximum(), Sort(), Copy(), Needle(), FlipFlop(), Share())
}
