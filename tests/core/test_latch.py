"""The latch that ends a run: opened once, waited for before, while and after it opens."""

from __future__ import annotations

import threading

from hetero_core.runtime.run import Latch


def test_latch_that_is_closed_lets_a_wait_run_out_and_lets_go_when_it_opens() -> None:
    latch = Latch()
    assert not latch.wait(0)
    assert not latch.wait(0.001)
    latch.open()
    assert latch.is_open
    assert latch.wait(0)
    assert latch.wait()


def test_latch_lets_all_threads_go_that_came_before_or_while_it_opened() -> None:
    for _ in range(200):
        latch, begin = Latch(), threading.Barrier(5)
        went: list[bool] = []

        def wait(latch: Latch = latch, begin: threading.Barrier = begin, went: list[bool] = went) -> None:
            begin.wait()
            went.append(latch.wait(60))

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        begin.wait()
        latch.open()
        for thread in threads:
            thread.join()
        assert went == [True] * 4
