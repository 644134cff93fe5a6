"""What all processes of a job read, known to each of them without a seed of ours."""

import pytest
from torch.utils.data import DistributedSampler

from stoker.cache.shares import Shares
from stoker.feed.route import distributed_ids


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_host_knows_what_torchs_sampler_gives_to_all_others(drop_last: bool) -> None:
    samplers = [DistributedSampler(range(22), 4, rank, shuffle=True, seed=5, drop_last=drop_last) for rank in range(4)]
    shares = Shares(lambda epoch: distributed_ids(samplers[0], epoch), host_of_rank=[0, 0, 1, 1])
    for epoch in range(3):
        given = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            given.append(list(sampler))
        for host in (0, 1):
            pairs = zip(given[2 * host], given[2 * host + 1], strict=True)
            assert shares.of_host(host, epoch).tolist() == [key for pair in pairs for key in pair]
