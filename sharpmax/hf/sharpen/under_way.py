"""Forward passes under way: a policy is switched off between passes of other threads, never within one."""

import threading


class UnderWay:
    """Counts the passes of each thread; a copy of a model has passes of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passes: dict[int, int] = {}
        self._leaving: int | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def begin(self) -> None:
        """Begin a pass; where another thread is leaving, wait until it has left."""
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._leaving in (None, thread) or thread in self._passes)
            self._passes[thread] = self._passes.get(thread, 0) + 1

    def end(self) -> None:
        """End a pass, whether it returned or raised."""
        thread = threading.get_ident()
        with self._changed:
            if self._passes.get(thread, 0) > 1:  # a model may call itself
                self._passes[thread] -= 1
            else:
                self._passes.pop(thread, None)
            self._changed.notify_all()

    def leave(self) -> None:
        """Hold new passes of other threads back, and wait for theirs to end."""
        thread = threading.get_ident()
        with self._changed:
            self._leaving = thread
            self._changed.wait_for(lambda: all(other == thread for other in self._passes))

    def left(self) -> None:
        """Let the passes go on that were held back."""
        with self._changed:
            self._leaving = None
            self._changed.notify_all()
