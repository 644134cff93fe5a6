"""Made-up samples and storage that is bad on purpose."""

import errno
import threading

import pytest

from stoker.errors import ConfigError, SampleNotFound, SourceError
from stoker.memory import Bytes
from stoker.source import reading
from stoker.source.reading import Named, Source, retried
from stoker.testing import Failing, FakeClock, Slow, SourceContract, Synthetic, Throttled


class Plain:
    """A source that is nothing more."""

    def __len__(self) -> int:
        return 3

    def sizes(self, ids: list[int]) -> list[int]:
        return [1 for _ in reading.checked(ids, 3)]

    def read(self, ids: list[int]) -> list[Bytes]:
        return [b"%d" % number for number in reading.checked(ids, 3)]


class TestSynthetic(SourceContract):
    @pytest.fixture
    def source(self) -> Source:
        return Synthetic(20, (0, 200_000), seed=3)

    @pytest.fixture
    def expected(self) -> list[Bytes]:
        return list(Synthetic(20, (0, 200_000), seed=3).read(range(20)))


class TestWrapped(SourceContract):
    @pytest.fixture(params=[Throttled, Slow, Failing])
    def source(self, request: pytest.FixtureRequest) -> Source:
        inner = Synthetic(5, 10)
        wrappers = {
            Throttled: lambda: Throttled(inner, 1e9),
            Slow: lambda: Slow(inner, 1e-6),
            Failing: lambda: Failing(inner, []),
        }
        return wrappers[request.param]()

    @pytest.fixture
    def expected(self) -> list[bytes]:
        return Synthetic(5, 10).read(range(5))

    def test_has_the_names_of_the_inner_one(self, source: Source) -> None:
        assert isinstance(source, Named)
        assert source.key(3) == Synthetic(5, 10).key(3)


@pytest.mark.parametrize("wrapped", [Throttled(Plain(), 1e9), Slow(Plain(), 0), Failing(Plain(), [])])
def test_without_names_there_are_none_to_pass_on(wrapped: Source) -> None:
    assert not isinstance(wrapped, Named)
    assert wrapped.read([2]) == [b"2"]


def test_synthetic_samples_differ_and_follow_from_the_seed() -> None:
    source = Synthetic(1000, (100, 300), seed=1)
    contents = source.read(range(1000))
    assert len(set(contents)) == 1000
    assert contents == Synthetic(1000, (100, 300), seed=1).read(range(1000))
    assert contents != Synthetic(1000, (100, 300), seed=2).read(range(1000))
    sizes = source.sizes(range(1000))
    assert min(sizes) < 105 and max(sizes) > 295 and all(100 <= size <= 300 for size in sizes)
    assert Synthetic(1, 70_000).sizes([0]) == [70_000]


def test_throttled_holds_its_rate_exactly() -> None:
    clock = FakeClock()
    source = Throttled(Synthetic(100, 1000), "100KB/s", clock=clock)
    for _ in range(10):
        for number in range(10):
            source.read([number])
        clock.advance(0.003)  # a sleep that ends late, work in between
    assert clock.now() == pytest.approx(1.003)
    clock.advance(10)
    source.read(range(100))
    assert clock.now() == pytest.approx(11.003 + 1 - 0.05)


def test_throttled_threads_share_a_rate() -> None:
    source = Throttled(Synthetic(10, 1000), 1e6)
    clock = source._clock
    began = clock.now()
    threads = [threading.Thread(target=source.read, args=(range(10),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() - began >= 0.04


def test_slow_waits_once_for_those_at_once() -> None:
    clock = FakeClock()
    source = Slow(Synthetic(100, 10), 0.5, concurrent=4, clock=clock)
    for count, waited in ((0, 0.0), (1, 0.5), (4, 0.5), (5, 1.0), (100, 12.5)):
        began = clock.now()
        assert len(source.read(range(count))) == count
        assert clock.now() - began == waited


def test_retries_until_it_passes_or_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(reading.time, "sleep", waited.append)
    source = Failing(Synthetic(5, 10), [2], times=3)
    assert retried(lambda: source.read([1, 2]), "sample 2") == Synthetic(5, 10).read([1, 2])
    assert waited == list(reading.RETRY_AFTER_S)
    source = Failing(Synthetic(5, 10), [2], times=4)
    with pytest.raises(SourceError, match="sample 2 cannot be read after 4 tries: made to fail") as caught:
        retried(lambda: source.read([2]), "sample 2")
    assert caught.value.errno == errno.EIO
    waited.clear()
    source = Failing(Synthetic(5, 10), [2], error=PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(SampleNotFound, match="sample 2 cannot be read: Permission denied"):
        retried(lambda: source.read([2]), "sample 2")
    assert not waited
    with pytest.raises(KeyError):
        retried(lambda: Failing(Synthetic(5, 10), [2], error=KeyError()).read([2]), "sample 2")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Synthetic(-1, 10),
        lambda: Synthetic(1, (5, 4)),
        lambda: Throttled(Plain(), 0),
        lambda: Throttled(Plain(), "fast"),
        lambda: Slow(Plain(), -1),
        lambda: Slow(Plain(), 1, concurrent=0),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
