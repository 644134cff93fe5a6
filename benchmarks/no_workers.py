"""Is the loader as fast as torch's when there are no workers?"""

from functools import partial

import harness
from workloads import WORKLOADS, Jpegs, SmallSamples, Volumes


def main() -> None:
    count = harness.rounds()
    datasets = {"small samples": SmallSamples(50_000), "volumes": Volumes(64), "jpeg": Jpegs(512)}
    for name, dataset in datasets.items():
        options = {"dataset": dataset, "batch_size": WORKLOADS[name][1], "shuffle": True}
        rates = harness.alternate(
            {loader: partial(harness.epoch_rate, make(**options)) for loader, make in harness.LOADERS.items()}, count
        )
        harness.report(
            f"no workers, {name}",
            ratio=rates.ratio("stoker", "torch"),
            samples_per_s=rates.medians(),
            same=harness.same_batches(**options),
        )


if __name__ == "__main__":
    main()
