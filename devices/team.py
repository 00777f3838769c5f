"""The threads of one rank: the caller is the first, the others sleep between steps."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Work = Callable[[int], None]  # takes the thread's number


class Team:
    """Threads 1 to threads - 1; 0 is whoever calls. A worker's exception goes to `failed`."""

    def __init__(self, threads: int, name: str, failed: Callable[[BaseException], None]) -> None:
        self.threads = threads
        self._failed = failed
        self._queues: list[SimpleQueue[Work | None]] = [SimpleQueue() for _ in range(1, threads)]
        self._workers = [
            Thread(target=self._serve, args=(number,), name=f"{name}.{number}", daemon=True)
            for number in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def wake(self, work: Work) -> None:
        """Begin a piece of work on every thread but the caller's."""
        for queue in self._queues:
            queue.put(work)

    def close(self) -> None:
        """End the threads after what they are doing."""
        for queue in self._queues:
            queue.put(None)
        for worker in self._workers:
            worker.join()

    def _serve(self, number: int) -> None:
        while (work := self._queues[number - 1].get()) is not None:
            try:
                work(number)
            except BaseException as error:
                self._failed(error)
