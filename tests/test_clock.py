import os
import signal

from kvlogd.clock import Clock, Waker


def test_the_clocks_run() -> None:
    clock = Clock()
    assert clock.monotonic_s() <= clock.monotonic_s()
    assert clock.wall_s() > 1.7e9


def test_a_wake_is_noticed_once() -> None:
    waker = Waker()
    assert not waker.wait(0.0)
    for _ in range(100_000):  # more than the pipe holds
        waker.wake()
    assert waker.wait(0.0)
    assert not waker.wait(0.0)
    waker.close()


def test_a_signal_wakes() -> None:
    waker = Waker()
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    old = signal.set_wakeup_fd(waker.fd, warn_on_full_buffer=False)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert waker.wait(20.0)
    signal.set_wakeup_fd(old)
    signal.signal(signal.SIGUSR2, before)
    waker.close()
