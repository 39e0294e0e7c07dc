"""2. Killed at random moments, with some of the work stored and some not: each line is stored once."""

import random
from pathlib import Path

from tests.tailing import both_ways, following, rotate, writing


@both_ways
def test_fifty_kills(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    chance = random.Random(2)
    with writing(log) as writer, following(log, is_watched=is_watched) as follower:
        for kill in range(50):
            for _ in range(chance.randrange(1, 4)):
                writer.lines(chance.randrange(1, 400))
                follower.poll(commits=chance.random() < 0.5)
            if kill % 10 == 5:
                rotate(log)
                writer.reopen()
            follower.pending = follower.pending[: chance.randrange(len(follower.pending) + 1)]
            follower.commit()
            follower.kill()
            assert all(place.offset <= writer.written * 100 for place in follower.places.values())
        follower.settle()
        assert follower.numbers == list(range(writer.written))
        assert follower.gaps == []
