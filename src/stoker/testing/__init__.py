"""For tests of one's own: contracts to subclass, sources that are slow or fail on purpose, and a clock that does not wait.

A contract is a class of tests for pytest. Subclass it, give it what it asks for, and the suite is yours:

    class TestMySource(SourceContract):
        @pytest.fixture
        def source(self, tmp_path): return MySource(tmp_path)

        @pytest.fixture
        def expected(self): return [b"first", b"second"]
"""

from stoker.source.synthetic import Failing, Slow, Synthetic, Throttled
from stoker.testing.clock import FakeClock
from stoker.testing.policies import PolicyContract, Uses
from stoker.testing.pools import PoolContract, ProcessPoolContract
from stoker.testing.sources import SourceContract

__all__ = [
    "Failing",
    "FakeClock",
    "PolicyContract",
    "PoolContract",
    "ProcessPoolContract",
    "Slow",
    "SourceContract",
    "Synthetic",
    "Throttled",
    "Uses",
]
