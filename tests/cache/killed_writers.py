"""Writers of a store that are killed at any moment, and what has to be in the store after each of them.

What a writer does in its turn number n is drawn from n alone. So it is known what has to be there: all turns that a writer
has told of, and of the one in which it was killed everything or nothing.
"""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from stoker.cache import inspection, stores

BUDGET = 600_000
NAMES = 400
_NUMBER = 8


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _turn(seed: int, turn: int) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """What is put in a turn, and what is evicted: some keys come again, with other bytes."""
    rng = random.Random(f"{seed} {turn}")
    numbers = [rng.randrange(NAMES) for _ in range(rng.randint(1, 8))]
    stamp = turn.to_bytes(4, "big")
    items = [(_key(number), (number.to_bytes(4, "big") + stamp) * rng.randint(1, 1500)) for number in numbers]
    return items, [_key(rng.randrange(NAMES)) for _ in range(rng.randint(0, 12))]


def _after(held: dict[bytes, bytes], seed: int, turn: int) -> dict[bytes, bytes]:
    """What a store holds after a turn, if it held that before."""
    items, evicted = _turn(seed, turn)
    held = {key: payload for key, payload in held.items() if key not in evicted}
    used = sum(map(len, held.values()))
    for key, payload in items:
        if key not in held and used + len(payload) <= BUDGET:
            held[key] = payload
            used += len(payload)
    return held


@contextlib.contextmanager
def _writer(folder: Path, seed: int, first: int) -> Iterator[tuple[int, int]]:
    """A process that does turns from `first` on and tells of each that is done: its number, and where it tells."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            cache, turn = stores.acquire(folder), first
            while True:
                items, evicted = _turn(seed, turn)
                cache.put(items, BUDGET, evict=evicted)
                os.write(writing, turn.to_bytes(_NUMBER, "big"))
                turn += 1
        finally:
            os._exit(1)
    os.close(writing)
    try:
        yield child, reading
    finally:
        _kill(child)
        os.close(reading)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _told(reading: int, turn: int) -> int:
    """The last turn that a killed writer has told of."""
    told = b""
    while more := os.read(reading, 1 << 16):
        told += more
    return int.from_bytes(told[-_NUMBER:], "big") if told else turn


def one_after_another(folder: Path, kills: int, seed: int) -> list[str]:
    """Kill one writer after another, each of which goes on where the one before has ended; what was wrong after a kill."""
    rng, wrong = random.Random(seed), []
    held: dict[bytes, bytes] = {}
    turn = -1
    for number in range(kills):
        with _writer(folder, seed, turn + 1) as (child, reading):
            first = os.read(reading, _NUMBER)  # it proceeds, whatever the one before has left
            if int.from_bytes(first, "big") != turn + 1:
                wrong.append(f"kill {number} of seed {seed}: the next writer did not go on")
                break
            threading.Event().wait(rng.random() * 0.01)  # a moment of its work
            _kill(child)
            told = _told(reading, turn + 1)
        for done in range(turn + 1, told + 1):
            held = _after(held, seed, done)
        turn = told
        damage, found, used = _inside(folder)
        if found == (whole := _after(held, seed, turn + 1)) != held:
            held, turn = whole, turn + 1
        if damage or found != held or used != sum(map(len, held.values())) or used > BUDGET:
            wrong.append(f"kill {number} of seed {seed}, after turn {turn}: {damage or 'other items than were put there'}")
            break
    return wrong


def _inside(folder: Path) -> tuple[str, dict[bytes, bytes], int]:
    """What is wrong with a store, all that is in it, and how much it says that is."""
    damage = inspection.damage(folder)
    with stores.visiting(folder) as cache:
        found = {key: payload for key in map(_key, range(NAMES)) if (payload := cache.get(key)) is not None}
        return damage, found, cache.payload_bytes()


def crowd(folder: Path, writers: int, seed: int) -> list[str]:
    """Writers that write at once are killed one by one, while the others go on; what was wrong after a kill."""
    rng, wrong = random.Random(seed), []
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_writer(folder, seed + number, 0)) for number in range(writers)]
        for _, reading in children:
            os.read(reading, _NUMBER)
        rng.shuffle(children)
        while children:
            threading.Event().wait(rng.random() * 0.02)
            _kill(children.pop()[0])
            for _, reading in children:  # what they have told of before, and then something new
                os.set_blocking(reading, False)
                with contextlib.suppress(BlockingIOError):
                    while os.read(reading, 1 << 16):
                        pass
                os.set_blocking(reading, True)
            if children and not any(os.read(reading, _NUMBER) for _, reading in children):
                wrong.append(f"seed {seed}: {len(children)} writers did not go on")
            wrong += [f"seed {seed}: wrong bytes of {name}" for name in _wrong_bytes(folder)]
    damage, found, used = _inside(folder)
    if damage or used != sum(map(len, found.values())) or used > BUDGET:
        wrong.append(f"seed {seed}: {damage or f'{used} bytes are said to be there'}")
    return wrong


def _wrong_bytes(folder: Path) -> list[int]:
    wrong = []
    with stores.visiting(folder) as cache:
        for number in range(NAMES):
            payload = cache.get(_key(number))
            if payload is not None and (payload[:4] != _key(number)[-4:] or payload != payload[:8] * (len(payload) // 8)):
                wrong.append(number)
        if cache.payload_bytes() > BUDGET:
            wrong.append(-1)
    return wrong
