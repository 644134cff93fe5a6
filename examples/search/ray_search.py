"""A search with Ray Tune: trials are actors of Ray, and every batch is prepared once for all of them.

python examples/search/ray_search.py --epochs 2 --samples 400 --trials 4
"""

from pathlib import Path
from typing import Any

import ray
from ray import tune
from task import Account, loaders, options, report, train, wait_for_others


def trial(config: dict[str, Any]) -> None:
    """Runs in a process of Ray's, which may be used for another trial afterwards: so the loaders are closed."""
    data = loaders(Path(config["directory"]), config["samples"], config["group"])
    try:
        wait_for_others(data["check"], config["trials"])
        accuracies: list[float] = []

        def tell(accuracy: float) -> None:
            accuracies.append(accuracy)
            if len(accuracies) < config["epochs"]:
                tune.report({"accuracy": accuracy})

        account = train(config["rate"], config["width"], config["epochs"], data, tell)
        tune.report({"accuracy": accuracies[-1], "account": dict(account)})
    finally:
        for loader in data.values():
            loader.close()


def main() -> None:
    chosen = options(__doc__)
    space = {
        "rate": tune.loguniform(1e-4, 1e-1),
        "width": tune.choice([8, 16, 32]),
        **{name: getattr(chosen, name) for name in ("trials", "epochs", "samples", "group")},
        "directory": str(chosen.directory),
    }
    # What Ray calls a CPU is one trial here: the work of the workers is shared, and need not be counted for each.
    ray.init(num_cpus=chosen.trials, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    try:
        tuner = tune.Tuner(
            trial,
            param_space=space,
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=chosen.trials),
            run_config=tune.RunConfig(name="pictures", storage_path=str(chosen.directory), verbose=0),
        )
        results = tuner.fit()
    finally:
        ray.shutdown()
    if results.errors:
        raise SystemExit(f"{len(results.errors)} trials failed; the first: {results.errors[0]}")

    ends = [results[number] for number in range(len(results))]
    found = [(end.metrics or {}, end.config or {}) for end in ends]
    for number, (metrics, config) in enumerate(found):
        print(f"trial {number}: {metrics['accuracy']:.3f} with rate {config['rate']:.4g}, width {config['width']}")
    best = results.get_best_result()
    assert best.metrics is not None and best.config is not None
    print(f"best: {best.metrics['accuracy']:.3f} with rate {best.config['rate']:.4g}, width {best.config['width']}")
    report([Account(metrics["account"]) for metrics, _ in found], chosen.directory, chosen.samples, chosen.epochs)


if __name__ == "__main__":
    main()
