"""What holds for every source."""

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from stoker.source.reading import Foresighted, Named, Releasing, Source


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
        """They raise an IndexError at any place in the list; negative ones are not counted from the end."""
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
