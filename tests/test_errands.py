import threading

import pytest

from kvlogd.clock import Waker
from kvlogd.errands import Errands
from kvlogd.errors import StoreError


def test_the_loop_does_what_another_thread_asks() -> None:
    waker = Waker()
    errands = Errands(waker.wake)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(errands.ask(threading.get_ident, 20.0)))
    thread.start()
    assert waker.wait(20.0)
    errands.run()
    thread.join()
    assert got == [threading.get_ident()]
    waker.close()


def test_an_error_of_ours_reaches_who_asked_and_not_the_loop() -> None:
    waker = Waker()
    errands = Errands(waker.wake)
    caught: list[StoreError] = []

    def fails() -> None:
        raise StoreError("full")

    def ask() -> None:
        with pytest.raises(StoreError) as error:
            errands.ask(fails, 20.0)
        caught.append(error.value)

    thread = threading.Thread(target=ask)
    thread.start()
    assert waker.wait(20.0)
    errands.run()
    thread.join()
    assert [error.what for error in caught] == ["full"]
    waker.close()


def test_nobody_waits_longer_than_they_said() -> None:
    with pytest.raises(StoreError, match="busy"):
        Errands(lambda: None).ask(lambda: 1, 0.01)
