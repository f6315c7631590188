"""The analysis thread: what goes first, and what counts as an answer."""

from __future__ import annotations

import threading

from torchwise_server.lsp.worker import Lane, Stop, Worker


def test_what_gave_way_is_no_answer_although_the_reason_goes() -> None:
    worker = Worker()
    began, seen, done = threading.Event(), threading.Event(), threading.Event()
    answers: list[bool] = []

    def estimate(stop: Stop) -> bool:
        began.set()
        if answers:  # the second run
            done.set()
            return True
        while not stop():
            pass
        worker.cancel(Lane.VERIFY, "file")
        answers.append(stop())
        seen.set()
        return False

    worker.submit(Lane.ESTIMATE, "file", estimate)
    assert began.wait(30)
    worker.submit(Lane.VERIFY, "file", lambda _: True, delay_s=60.0)
    assert seen.wait(30)
    assert answers == [True]
    assert done.wait(30)  # it is begun again
    worker.close()
