"""Who reads what: shares of hosts with several ranks, and who uses a sample next."""

import numpy as np
import pytest

from stoker.cache.replay import taken
from stoker.cache.shares import Shares, Users, shares_of
from stoker.errors import ConfigError
from stoker.order import Drawn


def test_a_host_reads_what_its_ranks_take_in_turn() -> None:
    order = Drawn(22, seed=3)
    shares = Shares(shares_of(order, 4).epoch_ids, [0, 1, 0, 1])
    of_ranks = [taken(order, rank, 4)(5).tolist() for rank in range(4)]
    for host in (0, 1):
        own = shares.of_host(host, 5).tolist()
        assert own == [of_ranks[rank][place] for place in range(6) for rank in (host, host + 2)]


def test_hosts_of_one_rank_are_readers() -> None:
    order = Drawn(10, seed=3)
    for host in range(3):
        assert shares_of(order, 3).of_host(host, 2).tolist() == taken(order, host, 3)(2).tolist()


def test_who_uses_a_sample_next() -> None:
    shares = shares_of(Drawn(24, seed=1), hosts=3, ranks=2, epochs=5)
    users = Users(shares, horizon=3)
    users.begin(1)
    for key in range(24):
        uses = [[epoch for epoch in range(1, 5) if key in shares.of_host(host, epoch)] for host in range(3)]
        for host in range(3):
            assert users.next_epoch(host, key, 0) == next(iter(uses[host]), None)
            assert users.next_epoch(host, key, 3) == next((epoch for epoch in uses[host] if epoch >= 3), None)
        assert users.is_needed(key, 4)
    users.begin(4)
    assert users.is_needed(0, 4)
    assert not users.is_needed(0, 5)
    assert users.next_epoch(0, 99, 4) is None


def test_known_epochs_are_not_drawn_again() -> None:
    drawn: list[int] = []

    def epoch_ids(epoch: int) -> np.ndarray:
        drawn.append(epoch)
        return np.arange(4)

    users = Users(Shares(epoch_ids, [0, 1]), horizon=2)
    users.begin(0)
    users.begin(1)
    assert drawn == [0, 1, 2, 3]


@pytest.mark.parametrize("hosts", [[], [0, 2], [1], [-1, 0]])
def test_hosts_that_cannot_be(hosts: list[int]) -> None:
    with pytest.raises(ConfigError, match="every host needs a rank"):
        Shares(lambda epoch: np.arange(4), hosts)
