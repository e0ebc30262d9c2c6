"""Compute cells in several processes of this machine, which share its GPU or its cores.

A process stays with its mechanism, whose layer it has compiled, until no task is left for it. Cells with the same
weights never run at once. The cell of a process that was killed is computed again by another one.
"""

import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import perf_counter
from typing import Any

from sharpmax.experiments.compare.cell import compute
from sharpmax.experiments.compare.plan import Cell, Study
from sharpmax.extras import extra
from sharpmax.runs.progress import duration, report_as, stage

with extra("torch"):
    import torch

RETRIES = 5  # of a cell whose process was lost

Outcome = dict[str, Any] | Exception


class _Worker:
    """A process, and the cell that it computes or computed last."""

    def __init__(self, threads: int) -> None:
        spawn = get_context("spawn")  # a forked process cannot use the GPU
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(theirs, threads), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is the end of the connection
        self.cell: Cell | None = None
        self.busy = False
        self.since = 0.0

    def give(self, cell: Cell, study: Study, scratch: Path) -> None:
        """Let it compute a cell."""
        self.cell, self.busy, self.since = cell, True, perf_counter()
        self.connection.send((cell, study, scratch))

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


def on_processes(
    cells: Sequence[Cell], study: Study, scratch: Callable[[Cell], Path], *, jobs: int
) -> Iterator[tuple[Cell, Outcome]]:
    """Yield each cell and its record, or its error, as they finish in at most `jobs` processes."""
    waiting, lost = list(cells), Counter[Cell]()
    workers: list[_Worker] = []
    report = report_as("compare")
    threads = max(1, torch.get_num_threads() // jobs)
    try:
        workers += [_Worker(threads) for _ in range(min(jobs, len(cells)))]
        with stage("cells", len(cells)) as advance:
            while waiting or any(worker.busy for worker in workers):
                for worker in workers:
                    if not worker.busy and (cell := _next(waiting, worker.cell, workers)) is not None:
                        waiting.remove(cell)
                        worker.give(cell, study, scratch(cell))
                at_work = {worker.connection: worker for worker in workers if worker.busy}
                for connection in wait(list(at_work)):
                    worker = at_work[connection]  # type: ignore[index]  # these are connections
                    cell, found = worker.cell, _received(worker.connection)
                    assert cell is not None
                    worker.busy = False
                    if found is None:
                        worker.end()
                        workers[workers.index(worker)] = _Worker(threads)
                        lost[cell] += 1
                        if lost[cell] <= RETRIES:
                            report(f"{cell.name}: its process was lost, trying again")
                            waiting.insert(0, cell)
                            continue
                        found = ChildProcessError(f"its process was lost {lost[cell]} times")
                    advance()
                    said = f"failed: {found}" if isinstance(found, Exception) else "done"
                    report(f"{cell.name} {said}, {duration(perf_counter() - worker.since)}")
                    yield cell, found
    finally:
        for worker in workers:
            worker.end()


def _next(waiting: Sequence[Cell], last: Cell | None, workers: Collection[_Worker]) -> Cell | None:
    """Return the first cell of the last one's layer, else of a layer that no process is at, else any that may run."""
    busy = [worker.cell.trained for worker in workers if worker.busy and worker.cell is not None]
    layers = {_layer(cell) for cell in busy}
    free = [cell for cell in waiting if cell.trained not in busy]
    same = (cell for cell in free if last is not None and _layer(cell) == _layer(last))
    others = (cell for cell in free if _layer(cell) not in layers)
    return next((cell for cells in (same, others, free) for cell in cells), None)


def _layer(cell: Cell) -> tuple[str, str]:
    """Return what is compiled once: a mechanism in a model."""
    return cell.trained.arm, cell.model


def _received(connection: Connection) -> Outcome | None:
    """Return what a process computed; None if it was lost."""
    try:
        found: Outcome = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return found


def _work(connection: Connection, threads: int) -> None:
    """Compute cells until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each process starts as many as there are cores
    torch.set_num_threads(threads)
    while True:
        try:
            cell, study, scratch = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(cell, study, scratch))


def _outcome(cell: Cell, study: Study, scratch: Path) -> Outcome:
    """Return the record of a cell, or its error as far as that can be sent."""
    try:
        return compute(cell, study, scratch)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error
