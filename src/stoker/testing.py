"""For tests of one's own: contracts to subclass, sources that are slow or fail on purpose, and a clock that does not wait.

A contract is a class of tests for pytest. Subclass it, give it the fixtures that it asks for, and the suite is yours:

    class TestMySource(SourceContract):
        @pytest.fixture
        def source(self, tmp_path): return MySource(tmp_path)

        @pytest.fixture
        def expected(self): return [b"first", b"second"]
"""

import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection

from stoker.cache.ledger import Ledger
from stoker.cache.policy import FAR, Policy
from stoker.source.reading import Foresighted, Named, Releasing, Source
from stoker.source.synthetic import Failing, Slow, Synthetic, Throttled

__all__ = ["Failing", "FakeClock", "PolicyContract", "Slow", "SourceContract", "Synthetic", "Throttled", "Uses"]


class FakeClock:
    """Time that passes only when told to, or while somebody sleeps."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Seconds since some moment."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass, as a sleeper sees it."""
        self.advance(seconds)


class SourceContract:
    """What holds for every source. Fixtures: `source`, and `expected`, the bytes of all its samples; at least one."""

    def test_length(self, source: Source, expected: Sequence[bytes]) -> None:
        """It has as many samples as are expected."""
        assert len(source) == len(expected)

    def test_sizes(self, source: Source, expected: Sequence[bytes]) -> None:
        """Sizes are those of the bytes, in the order asked for."""
        ids = [*range(len(expected)), 0]
        assert list(source.sizes(ids)) == [len(expected[number]) for number in ids]

    def test_reads_in_any_order(self, source: Source, expected: Sequence[bytes]) -> None:
        """Forwards, backwards, and from both ends in turn."""
        count = len(expected)
        turns = [number // 2 if number % 2 == 0 else count - 1 - number // 2 for number in range(count)]
        for ids in (list(range(count)), list(reversed(range(count))), turns):
            assert _read(source, ids) == [expected[number] for number in ids]

    def test_reads_one(self, source: Source, expected: Sequence[bytes]) -> None:
        """One at a time."""
        for number, content in enumerate(expected):
            assert _read(source, [number]) == [content]

    def test_reads_one_twice(self, source: Source, expected: Sequence[bytes]) -> None:
        """A number that is asked for twice is answered twice."""
        last = len(expected) - 1
        assert _read(source, [last, 0, last]) == [expected[last], expected[0], expected[last]]

    def test_reads_none(self, source: Source) -> None:
        """No numbers, no samples."""
        assert list(source.read([])) == []
        assert list(source.sizes([])) == []

    def test_numbers_beyond_its_samples(self, source: Source, expected: Sequence[bytes]) -> None:
        """Are an IndexError, wherever they stand; negative ones are not counted from the end."""
        for number in (len(expected), -1, 1 << 40):
            for ids in ([number], [0, number]):
                _assert_raises(IndexError, lambda ids=ids: source.read(ids))  # type: ignore[misc]
                _assert_raises(IndexError, lambda ids=ids: source.sizes(ids))  # type: ignore[misc]

    def test_travels_to_another_process(self, source: Source, expected: Sequence[bytes]) -> None:
        """By pickle, also after it was read from."""
        _read(source, [0])
        copy = pickle.loads(pickle.dumps(source))
        assert len(copy) == len(expected)
        assert _read(copy, range(len(expected))) == list(expected)

    def test_reads_in_a_forked_process(self, source: Source, expected: Sequence[bytes]) -> None:
        """And goes on in this one, while that one reads."""
        _read(source, [0])
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_read_all_into, args=(source, there))
        child.start()
        there.close()
        try:
            assert _read(source, range(len(expected))) == list(expected)
            assert here.recv() == list(expected)
        finally:
            here.close()
            child.join()
        assert child.exitcode == 0

    def test_reads_in_threads(self, source: Source, expected: Sequence[bytes]) -> None:
        """Several at the same time."""
        ids = list(range(len(expected)))
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda start: _read(source, ids[start:] + ids[:start]), [*ids, *ids][:16]))
        for start, result in zip([*ids, *ids], results, strict=False):
            assert result == [expected[number] for number in ids[start:] + ids[:start]]

    def test_names(self, source: Source, expected: Sequence[bytes]) -> None:
        """If it has them: each sample its own, and the same for all who ask, as long as nothing changes."""
        if isinstance(source, Named):
            assert isinstance(source.name, str)
            keys = [source.key(number) for number in range(len(expected))]
            versions = [source.version(number) for number in range(len(expected))]
            assert all(isinstance(each, bytes) for each in keys + versions)
            assert len(set(keys)) == len(expected)
            _read(source, range(len(expected)))
            other = pickle.loads(pickle.dumps(source))
            assert other.name == source.name
            assert [other.key(number) for number in range(len(expected))] == keys
            assert [other.version(number) for number in range(len(expected))] == versions
            for number in (len(expected), -1):
                _assert_raises(IndexError, lambda number=number: source.key(number))  # type: ignore[misc]

    def test_advice_changes_nothing(self, source: Source, expected: Sequence[bytes]) -> None:
        """What is expected or released reads the same, and advice about samples that are not there is passed by."""
        ids = list(range(len(expected)))
        for advice in ([], ids, [0, 0], [len(expected), -1]):
            if isinstance(source, Foresighted):
                source.expect(advice)
            assert _read(source, ids) == list(expected)
            if isinstance(source, Releasing):
                source.release(advice)
            assert _read(source, ids) == list(expected)


def _read(source: Source, ids: Sequence[int]) -> list[bytes]:
    return [bytes(content) for content in source.read(ids)]


def _read_all_into(source: Source, pipe: Connection) -> None:
    pipe.send(_read(source, range(len(source))))


def _assert_raises(kind: type[Exception], act: Callable[[], object]) -> None:
    try:
        act()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


class Uses:
    """Samples that are used one after the other; `now` is the place of the one that is being used."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = keys
        self.now = -1

    def __iter__(self) -> Iterator[int]:
        for key in self.keys:
            self.now += 1
            yield key

    def next_use(self, key: int) -> int:
        """The place of its next use, or FAR."""
        return next((place for place in range(self.now + 1, len(self.keys)) if self.keys[place] == key), FAR)


class PolicyContract:
    """Subclass it and give `policy`; pytest finds the tests. `next_use` tells when a key is used next."""

    samples = 12

    def policy(self, next_use: Callable[[int], int]) -> Policy:
        """The policy to test, new and empty."""
        raise NotImplementedError

    def filled(self) -> Policy:
        """One that has seen every key but 0, which is the newcomer, used before all others."""
        policy = self.policy(lambda key: key * 7 % self.samples)
        for key in range(1, self.samples):
            policy.enter(key)
        return policy

    def test_victims_are_residents_named_once(self) -> None:
        """Nobody else can make room, and nobody can twice."""
        policy = self.filled()
        policy.leave(3)
        policy.leave(5)
        policy.enter(5)
        policy.touch(7)
        policy.touch(7)
        victims = list(policy.victims(0))
        assert len(victims) == len(set(victims))
        assert set(victims) <= set(range(1, self.samples)) - {3}

    def test_asking_changes_nothing(self) -> None:
        """A walk over the victims may end anywhere; the next one starts from the same best."""
        policy = self.filled()
        victims = list(policy.victims(0))
        for count in range(len(victims) + 1):
            assert list(islice(policy.victims(0), count)) == victims[:count]
        assert list(policy.victims(0)) == victims

    def test_an_empty_one_has_no_victims(self) -> None:
        """Neither at first nor when all have left."""
        policy = self.policy(lambda key: FAR)
        assert list(policy.victims(0)) == []
        policy.enter(1)
        policy.leave(1)
        assert list(policy.victims(0)) == []

    def test_strangers_change_nothing(self) -> None:
        """To touch or to leave means nothing for who is not resident."""
        policy = self.filled()
        victims = list(policy.victims(0))
        policy.touch(0)
        policy.leave(0)
        assert list(policy.victims(0)) == victims

    def test_a_ledger_keeps_its_capacity(self) -> None:
        """On random uses of samples of random sizes, and what is said to be evicted was resident."""
        for seed in range(20):
            rng = random.Random(seed)
            sizes = [rng.randint(0, 9) for _ in range(self.samples)]
            uses = Uses([rng.randrange(self.samples) for _ in range(300)])
            ledger = Ledger(rng.randint(0, 40), self.policy(uses.next_use))
            resident: set[int] = set()
            for key in uses:
                assert ledger.look(key) == (key in resident)
                if key not in resident:
                    admission = ledger.admit(key, sizes[key])
                    assert resident.issuperset(admission.evicted)
                    assert admission.kept or not admission.evicted
                    resident.difference_update(admission.evicted)
                    resident.update([key] if admission.kept else [])
                assert ledger.stats().used_bytes == sum(sizes[key] for key in resident) <= ledger.capacity_bytes
