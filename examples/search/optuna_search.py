"""A search with Optuna: processes that share a study, and prepare every batch once for all of them.

python examples/search/optuna_search.py --epochs 2 --samples 400 --trials 4
"""

import multiprocessing
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from task import Account, loaders, options, report, train, wait_for_others

NAME = "pictures"


def open_study(folder: Path, **others: Any) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(folder / "journal")))
    return optuna.create_study(study_name=NAME, storage=storage, direction="maximize", load_if_exists=True, **others)


def work(folder: Path, number: int, chosen: dict[str, Any]) -> None:
    """A process of the search. Its loaders are made once, and serve all its trials."""
    data = loaders(folder, chosen["samples"], chosen["group"])
    wait_for_others(data["check"], chosen["trials"])

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        width = trial.suggest_categorical("width", [8, 16, 32])
        accuracies: list[float] = []
        account = train(rate, width, chosen["epochs"], data, accuracies.append)
        trial.set_user_attr("account", account)
        return max(accuracies)

    study = open_study(folder, sampler=optuna.samplers.TPESampler(seed=number))
    study.optimize(objective, n_trials=1)
    for loader in data.values():
        loader.close()


def main() -> None:
    chosen = options(__doc__)
    study = open_study(chosen.directory)
    processes = multiprocessing.get_context("fork")  # this process itself uses no GPU and no threads
    workers = [processes.Process(target=work, args=(chosen.directory, n, vars(chosen))) for n in range(chosen.trials)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process of the search failed")

    for trial in study.trials:
        print(f"trial {trial.number}: {trial.value:.3f} with {trial.params}")
    print(f"best: {study.best_value:.3f} with {study.best_params}")
    accounts = [Account(trial.user_attrs["account"]) for trial in study.trials]
    report(accounts, chosen.directory, chosen.samples, chosen.epochs)


if __name__ == "__main__":
    main()
